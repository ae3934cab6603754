(* Small facts about rationals and finite sums that the other files share. *)

From Coq Require Import List Arith Bool QArith Qminmax Lia Lqa Setoid Morphisms.
From optcc Require Import Model.
Import ListNotations.
Open Scope Q_scope.

(* ------------------------------------------------------------------------ *)
(* Naturals as rationals                                                      *)

Lemma Qnat_plus a b : Qnat (a + b) == Qnat a + Qnat b.
Proof. unfold Qnat; rewrite Nat2Z.inj_add, inject_Z_plus; reflexivity. Qed.

Lemma Qnat_mult a b : Qnat (a * b) == Qnat a * Qnat b.
Proof. unfold Qnat; rewrite Nat2Z.inj_mul, inject_Z_mult; reflexivity. Qed.

Lemma Qnat_S a : Qnat (S a) == Qnat a + 1.
Proof. rewrite <- Nat.add_1_r; apply Qnat_plus. Qed.

Lemma Qnat_le a b : (a <= b)%nat <-> Qnat a <= Qnat b.
Proof. unfold Qnat; rewrite <- Zle_Qle; lia. Qed.

Lemma Qnat_lt a b : (a < b)%nat <-> Qnat a < Qnat b.
Proof. unfold Qnat; rewrite <- Zlt_Qlt; lia. Qed.

Lemma Qnat_inj a b : Qnat a == Qnat b -> a = b.
Proof. unfold Qnat; intros H; apply (proj1 (inject_Z_injective _ _)) in H; lia. Qed.

Lemma Qnat_pos a : (0 < a)%nat -> 0 < Qnat a.
Proof. apply (Qnat_lt 0). Qed.

Lemma Qnat_nonneg a : 0 <= Qnat a.
Proof. apply (Qnat_le 0); lia. Qed.

(* [Qnat (k - d)] as a difference; the side condition is natural arithmetic. *)
Lemma Qnat_minus a b : (b <= a)%nat -> Qnat (a - b) == Qnat a - Qnat b.
Proof.
  intros H; replace (Qnat a) with (Qnat ((a - b) + b)) by (f_equal; lia).
  rewrite Qnat_plus; ring.
Qed.

(* ------------------------------------------------------------------------ *)
(* Division                                                                   *)

Lemma Qdiv_le a b c : 0 < b -> a <= c * b -> a / b <= c.
Proof. intros; apply Qle_shift_div_r; assumption. Qed.

Lemma Qle_of_div a b c : 0 < b -> a / b <= c -> a <= c * b.
Proof.
  intros Hb H; setoid_replace a with (a / b * b) by (field; lra).
  apply Qmult_le_compat_r; lra.
Qed.

Lemma Qdiv_nonneg a b : 0 <= a -> 0 < b -> 0 <= a / b.
Proof. intros; apply Qle_shift_div_l; lra. Qed.

(* ------------------------------------------------------------------------ *)
(* Sums                                                                       *)

Lemma sumQ_S k f : sumQ (S k) f == sumQ k f + f k.
Proof.
  unfold sumQ; rewrite seq_S, map_app, fold_right_app; simpl.
  generalize (seq 0 k) as l; induction l as [|a l IH]; simpl; [ring|].
  rewrite IH; ring.
Qed.

Lemma sumQ_ext k f g :
  (forall i, (i < k)%nat -> f i == g i) -> sumQ k f == sumQ k g.
Proof.
  induction k as [|k IH]; intros H; [reflexivity|].
  rewrite !sumQ_S, IH by (intros; apply H; lia).
  rewrite (H k) by lia; reflexivity.
Qed.

Lemma sumQ_le k f g :
  (forall i, (i < k)%nat -> f i <= g i) -> sumQ k f <= sumQ k g.
Proof.
  induction k as [|k IH]; intros H; [apply Qle_refl|].
  rewrite !sumQ_S; apply Qplus_le_compat; [apply IH; intros; apply H; lia|].
  apply H; lia.
Qed.

Lemma sumQ_plus k f g : sumQ k (fun i => f i + g i) == sumQ k f + sumQ k g.
Proof.
  induction k as [|k IH]; [reflexivity|]; rewrite !sumQ_S, IH; ring.
Qed.

Lemma sumQ_scale k x f : sumQ k (fun i => x * f i) == x * sumQ k f.
Proof.
  induction k as [|k IH]; [unfold sumQ; simpl; ring|]; rewrite !sumQ_S, IH; ring.
Qed.

Lemma sumQ_const k x : sumQ k (fun _ => x) == Qnat k * x.
Proof.
  induction k as [|k IH]; [unfold sumQ, Qnat; simpl; ring|].
  rewrite sumQ_S, IH, Qnat_S; ring.
Qed.

Lemma sumQ_split k m f :
  sumQ (k + m) f == sumQ k f + sumQ m (fun i => f (k + i)%nat).
Proof.
  induction m as [|m IH].
  - rewrite Nat.add_0_r; unfold sumQ at 3; simpl; ring.
  - rewrite Nat.add_succ_r, !sumQ_S, IH; ring.
Qed.

Lemma sumQ_nonneg k f : (forall i, (i < k)%nat -> 0 <= f i) -> 0 <= sumQ k f.
Proof.
  intros H; apply Qle_trans with (sumQ k (fun _ => 0)).
  - rewrite sumQ_const; lra.
  - apply sumQ_le; exact H.
Qed.

Lemma sumQ_pos k f : (0 < k)%nat -> positive k f -> 0 < sumQ k f.
Proof.
  intros Hk H; destruct k as [|k]; [lia|]; rewrite sumQ_S.
  generalize (H k ltac:(lia)).
  generalize (sumQ_nonneg k f ltac:(intros; apply Qlt_le_weak, H; lia)); lra.
Qed.

(* Sums of naturals. *)
Definition sumN (k : nat) (f : nat -> nat) : nat := list_sum (map f (seq 0 k)).

Lemma sumN_S k f : sumN (S k) f = (sumN k f + f k)%nat.
Proof.
  unfold sumN; rewrite seq_S, map_app, list_sum_app; simpl; lia.
Qed.

Lemma sumN_ext k f g :
  (forall i, (i < k)%nat -> f i = g i) -> sumN k f = sumN k g.
Proof.
  induction k as [|k IH]; intros H; [reflexivity|].
  now rewrite !sumN_S, IH, (H k) by (try lia; intros; apply H; lia).
Qed.

Lemma Qnat_sumN k f : Qnat (sumN k f) == sumQ k (fun i => Qnat (f i)).
Proof.
  induction k as [|k IH]; [reflexivity|].
  rewrite sumN_S, sumQ_S, Qnat_plus, IH; reflexivity.
Qed.

(* ------------------------------------------------------------------------ *)
(* The smallest of several                                                    *)

Lemma minQ_le k f i : (i < k)%nat -> minQ k f <= f i.
Proof.
  intros H; unfold minQ.
  assert (I : In i (seq 0 k)) by (apply in_seq; lia).
  induction (seq 0 k) as [|j l IH]; simpl in *; [easy|]; destruct I as [->|I].
  - apply Q.le_min_l.
  - eapply Qle_trans; [apply Q.le_min_r | apply IH, I].
Qed.

Lemma minQ_greatest k f x :
  (0 < k)%nat -> (forall i, (i < k)%nat -> x <= f i) -> x <= minQ k f.
Proof.
  intros Hk H; unfold minQ.
  assert (I : forall i, In i (seq 0 k) -> x <= f i).
  { intros i Hi; apply in_seq in Hi; apply H; lia. }
  induction (seq 0 k) as [|j l IH]; simpl in *; [apply H, Hk|].
  apply Q.min_glb; auto.
Qed.

Lemma minQ_pos k f : (0 < k)%nat -> positive k f -> 0 < minQ k f.
Proof.
  intros Hk H; unfold minQ.
  assert (I : forall i, In i (seq 0 k) -> 0 < f i).
  { intros i Hi; apply in_seq in Hi; apply H; lia. }
  induction (seq 0 k) as [|j l IH]; simpl in *; [apply H, Hk|].
  apply Q.min_glb_lt; auto.
Qed.

(* ------------------------------------------------------------------------ *)
(* Finitely many non-negative rationals have a common denominator             *)

Lemma common_denominator k (f : nat -> Q) :
  (forall i, (i < k)%nat -> 0 <= f i) ->
  exists (N : nat) (w : nat -> nat), (0 < N)%nat /\
    forall i, (i < k)%nat -> Qnat (w i) == Qnat N * f i.
Proof.
  induction k as [|k IH]; intros H; [exists 1%nat, (fun _ => 0%nat); split; lia|].
  destruct IH as (N & w & HN & Hw); [intros; apply H; lia|].
  specialize (H k ltac:(lia)).
  destruct (f k) as [p q] eqn:E.
  exists (N * Pos.to_nat q)%nat,
    (fun i => if (i =? k)%nat then (N * Z.to_nat p)%nat else (w i * Pos.to_nat q)%nat).
  split; [nia|]; intros i Hi; destruct (Nat.eqb_spec i k) as [->|Ne].
  - rewrite !Qnat_mult, E; setoid_replace (p # q) with (inject_Z p / inject_Z (Zpos q)).
    + unfold Qnat at 2 4; rewrite positive_nat_Z, Z2Nat.id; [field; easy|].
      unfold Qle in H; simpl in H; lia.
    + symmetry; rewrite (Qmake_Qdiv p q); reflexivity.
  - rewrite !Qnat_mult, Hw by lia; ring.
Qed.
