(* The nested-ring shares: non-negative, sum 1, and they load every server by
   exactly L_i.

   With M_0 = 1 and M_i = L_i, all shares have one form, x_m = d_m m / (P-2) with
   d_m = M_{P-m+1} - M_{P-m}: a step up the sorted loads.  A ring server pays
   (P-2)/m more per element than a leaf, so pattern m adds d_m to the load of
   every server in its ring, and the steps telescope. *)

From Coq Require Import List Arith Bool QArith Lia Lqa.
From optcc Require Import Model Rational.
Open Scope Q_scope.

Section Shares.
Variables (P : nat) (L : nat -> Q).
Hypothesis HP : (3 <= P)%nat.
Hypothesis adm : admissible_loads P L.

Definition M (i : nat) : Q := if (i =? 0)%nat then 1 else L i.
Definition d (m : nat) : Q := M (P - m + 1) - M (P - m).

Lemma P2_pos : 0 < Qnat (P - 2).
Proof. apply Qnat_pos; lia. Qed.

Lemma share_d m : (1 <= m <= P)%nat -> share P L m == d m * Qnat m / Qnat (P - 2).
Proof.
  intros Hm; unfold share, d, M; destruct (Nat.eqb_spec m P) as [->|N].
  - rewrite Nat.sub_diag; reflexivity.
  - rewrite (proj2 (Nat.eqb_neq (P - m + 1) 0)) by lia.
    rewrite (proj2 (Nat.eqb_neq (P - m) 0)) by lia; reflexivity.
Qed.

Lemma d_nonneg m : (1 <= m <= P)%nat -> 0 <= d m.
Proof.
  intros Hm; destruct adm as (H1 & Hs & _); unfold d, M.
  rewrite (proj2 (Nat.eqb_neq (P - m + 1) 0)) by lia; rewrite Nat.add_1_r.
  destruct (Nat.eqb_spec (P - m) 0) as [->|N]; [lra|].
  specialize (Hs (P - m)%nat ltac:(lia)); lra.
Qed.

Theorem share_nonneg m : (1 <= m <= P)%nat -> 0 <= share P L m.
Proof.
  intros Hm; rewrite share_d by easy.
  apply Qdiv_nonneg; [|apply P2_pos].
  apply Qmult_le_0_compat; [now apply d_nonneg | apply Qnat_nonneg].
Qed.

(* Summing the steps weighted by m (Abel) gives the sum of the loads ... *)
Lemma abel k : (k <= P)%nat ->
  sum1 k (fun m => d m * Qnat m)
  == sumQ k (fun j => M (P - j)%nat) - Qnat k * M (P - k).
Proof.
  unfold sum1; induction k as [|k IH]; intros Hk.
  - unfold sumQ, Qnat; simpl; ring.
  - rewrite !sumQ_S, IH by lia; unfold d.
    replace (P - S k + 1)%nat with (P - k)%nat by lia.
    rewrite Qnat_S; ring.
Qed.

Lemma sum_reversed f k : sumQ k (fun j => f (k - j)%nat) == sum1 k f.
Proof.
  induction k as [|k IH]; [reflexivity|].
  unfold sum1 in *; rewrite (sumQ_S k (fun i => f (S i))), <- IH.
  change (S k) with (1 + k)%nat at 1; rewrite sumQ_split.
  unfold sumQ at 1; simpl; ring.
Qed.

(* ... and the plain sum of the steps from server i on gives L_i. *)
Lemma telescope i k : (1 <= i <= P)%nat -> (k <= P)%nat ->
  sum1 k (fun m => if leaf P m i then 0 else d m)
  == if (k <=? P - i)%nat then 0 else M i - M (P - k).
Proof.
  intros Hi; unfold sum1, leaf; induction k as [|k IH]; intros Hk; [reflexivity|].
  rewrite sumQ_S, IH by lia; unfold d.
  replace (P - S k + 1)%nat with (P - k)%nat by lia.
  destruct (Nat.leb_spec k (P - i)), (Nat.leb_spec (S k) (P - i)),
    (Nat.leb_spec i (P - S k)); try lia; try ring.
  replace (P - k)%nat with i by lia; ring.
Qed.

Theorem share_sum : sum1 P (share P L) == 1.
Proof.
  destruct adm as (_ & _ & Hsum); pose proof P2_pos.
  assert (E : sum1 P (share P L)
    == / Qnat (P - 2) * sum1 P (fun m => d m * Qnat m)).
  { unfold sum1; rewrite <- sumQ_scale; apply sumQ_ext; intros i Hi.
    rewrite share_d by lia; field; lra. }
  rewrite E, abel by lia.
  rewrite (sum_reversed M P), Nat.sub_diag.
  assert (EM : sum1 P M == sum1 P L) by (unfold sum1; apply sumQ_ext; reflexivity).
  rewrite EM, Hsum; change (M 0) with 1.
  setoid_replace (Qnat (2 * (P - 1)) - Qnat P * 1) with (Qnat (P - 2)); [field; lra|].
  rewrite Qnat_mult, !Qnat_minus by lia; change (Qnat 1) with 1; change (Qnat 2) with 2.
  ring.
Qed.

Theorem share_load i : (1 <= i <= P)%nat ->
  sum1 P (fun m => share P L m * load_in_pattern P m i) == L i.
Proof.
  intros Hi; pose proof P2_pos.
  assert (E : sum1 P (fun m => share P L m * load_in_pattern P m i)
    == sum1 P (share P L) + sum1 P (fun m => if leaf P m i then 0 else d m)).
  { unfold sum1; rewrite <- sumQ_plus; apply sumQ_ext; intros j Hj.
    unfold load_in_pattern; rewrite share_d by lia.
    destruct (leaf P (S j) i); [ring|].
    replace (S j + P - 2)%nat with (S j + (P - 2))%nat by lia.
    rewrite (Qnat_plus (S j)); pose proof (Qnat_pos (S j) ltac:(lia)).
    field; split; lra. }
  rewrite E, share_sum, telescope by lia.
  rewrite (proj2 (Nat.leb_gt P (P - i))) by lia.
  rewrite Nat.sub_diag; change (M 0) with 1; unfold M.
  rewrite (proj2 (Nat.eqb_neq i 0)) by lia; ring.
Qed.

Theorem share_fit i n T (B : nat -> Q) : (1 <= i <= P)%nat -> 0 < n ->
  L i <= B i * T / n ->
  let load := n * sum1 P (fun m => share P L m * load_in_pattern P m i) in
  load <= B i * T /\ (L i == B i * T / n -> load == B i * T).
Proof.
  intros Hi Hn H; cbv zeta; rewrite share_load by easy; split.
  - setoid_replace (B i * T) with (n * (B i * T / n)) by (field; lra); nra.
  - intros ->; field; lra.
Qed.
End Shares.

(* Loads within the rates.  With b_i = tau B_i >= 1 and sum b >= 2(P-1), scale
   what lies above 1 down to the right sum: L_i = 1 + theta (b_i - 1). *)
Theorem loads_exist P (b : nat -> Q) :
  (3 <= P)%nat -> 1 <= b 1%nat ->
  (forall i, (1 <= i < P)%nat -> b i <= b (S i)) ->
  Qnat (2 * (P - 1)) <= sum1 P b ->
  exists L, admissible_loads P L /\ forall i, (1 <= i <= P)%nat -> L i <= b i.
Proof.
  intros HP H1 Hs Hsum; set (theta := Qnat (P - 2) / (sum1 P b - Qnat P)).
  assert (Hpos : 0 < Qnat (P - 2)) by (apply Qnat_pos; lia).
  assert (G : Qnat (2 * (P - 1)) == Qnat P + Qnat (P - 2)).
  { rewrite <- Qnat_plus; replace (2 * (P - 1))%nat with (P + (P - 2))%nat by lia.
    reflexivity. }
  assert (Hd : Qnat (P - 2) <= sum1 P b - Qnat P) by lra.
  assert (T0 : 0 <= theta) by (apply Qdiv_nonneg; lra).
  assert (T1 : theta <= 1) by (apply Qdiv_le; lra).
  assert (Hb : forall i, (1 <= i <= P)%nat -> 1 <= b i).
  { induction i as [|[|i] IH]; intros Hi; [lia | exact H1|].
    specialize (IH ltac:(lia)); specialize (Hs (S i) ltac:(lia)); lra. }
  exists (fun i => 1 + theta * (b i - 1)); split; [repeat split|].
  - nra.
  - intros i Hi; specialize (Hs i Hi); nra.
  - unfold sum1 in *.
    setoid_replace (sumQ P (fun i => 1 + theta * (b (S i) - 1)))
      with (sumQ P (fun i => (1 - theta) + theta * b (S i)))
      by (apply sumQ_ext; intros; ring).
    rewrite sumQ_plus, sumQ_const, sumQ_scale, G; unfold theta; field; lra.
  - intros i Hi; specialize (Hb i Hi); nra.
Qed.
