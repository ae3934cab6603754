(* From shares to a whole schedule: give pattern m the number of elements that its
   share asks for, in whole rounds. *)

From Coq Require Import List Arith Bool QArith Qminmax Lia Lqa.
From optcc Require Import Model Rational Shares Plans Optimal.

Open Scope Q_scope.

Theorem nested_rings_carry P (L : nat -> Q) :
  (3 <= P)%nat -> admissible_loads P L ->
  exists pl : list (nat * nat),
    let n := length pl in let s := nested_rings P pl in
    (0 < n)%nat /\ exactly_once P n s /\
    (forall m, (1 <= m <= P)%nat ->
       Qnat (length (filter (fun a => (fst a =? m)%nat) pl)) == Qnat n * share P L m) /\
    (forall r, (r < P)%nat ->
       Qnat (sent r s) == Qnat n * L (S r) /\ Qnat (received r s) == Qnat n * L (S r)).
Proof.
  intros HP adm.
  destruct (common_denominator P (fun i => share P L (S i) / Qnat (S i)))
    as (N & w & HN & Hw).
  { intros i Hi; apply Qdiv_nonneg; [apply share_nonneg; auto; lia | apply Qnat_pos; lia]. }
  set (k := fun m => w (m - 1)%nat); exists (plan P k); cbv zeta.
  assert (Wk : forall i, (i < P)%nat ->
    Qnat (k (S i)) * Qnat (S i) == Qnat N * share P L (S i)).
  { intros i Hi; unfold k; simpl; rewrite Nat.sub_0_r, Hw by easy; field.
    pose proof (Qnat_pos (S i) ltac:(lia)); lra. }
  (* the plan has N elements *)
  assert (EN : length (plan P k) = N).
  { apply Qnat_inj.
    assert (E : length (plan P k) = total (fun _ => 1%nat) (plan P k)).
    { unfold total; induction (plan P k) as [|a l IH]; simpl; [easy|]; now rewrite IH. }
    rewrite E, total_plan, Qnat_sumN.
    rewrite (sumQ_ext P _ (fun i => Qnat N * share P L (S i))).
    - rewrite sumQ_scale; fold (sum1 P (share P L)).
      rewrite (share_sum P L HP adm); ring.
    - intros i Hi; rewrite round_leaf, Qnat_mult by easy; now apply Wk. }
  rewrite EN; split; [easy|]; split; [rewrite <- EN; apply plan_once|]; split.
  - intros m Hm; rewrite plan_pattern, Qnat_mult by easy.
    specialize (Wk (m - 1)%nat ltac:(lia)).
    now replace (S (m - 1)) with m in Wk by lia.
  - intros r Hr; rewrite plan_sent, plan_received by easy.
    enough (E : Qnat (sumN P (fun i => k (S i) * round_load P (S i) r)%nat)
                == Qnat N * L (S r)) by (split; exact E).
    rewrite Qnat_sumN, <- (share_load P L HP adm (S r)) by lia.
    unfold sum1; rewrite <- sumQ_scale; apply sumQ_ext; intros i Hi.
    rewrite Qnat_mult, Qmult_assoc, <- (Wk i Hi).
    unfold load_in_pattern, leaf, round_load.
    pose proof (Qnat_pos (S i) ltac:(lia)).
    destruct (Nat.ltb_spec r (P - S i)), (Nat.leb_spec (S r) (P - S i)); try lia;
      [ring | field; lra].
Qed.

(* Sorted equal in/out rates: nested rings reach the lower bound. *)
Theorem nested_rings_optimal P (B : rank -> Q) :
  (3 <= P)%nat -> positive P B ->
  (forall r, (S r < P)%nat -> B r <= B (S r)) ->
  exists pl : list (nat * nat),
    let n := length pl in let s := nested_rings P pl in
    (0 < n)%nat /\ exactly_once P n s /\ fits P s (best_time P n B B) B B.
Proof.
  intros HP HB Hs; set (tau := best_time P 1 B B).
  assert (A : Qnat 1 / minQ P B <= tau /\ Qnat (2 * (P - 1) * 1) / sumQ P B <= tau).
  { unfold tau, best_time; split; eauto using Qle_trans, Q.le_max_l, Q.le_max_r. }
  destruct A as [A1 A2]; destruct (spare P tau B ltac:(lia) HB A1 A2) as [S1 S2].
  assert (Ht : 0 < tau).
  { specialize (S1 0%nat ltac:(lia)); specialize (HB 0%nat ltac:(lia)); nra. }
  destruct (loads_exist P (fun i => tau * B (i - 1)%nat) HP) as (L & adm & within).
  - specialize (S1 0%nat ltac:(lia)); simpl; lra.
  - intros i Hi; specialize (Hs (i - 1)%nat ltac:(lia)).
    replace (S i - 1)%nat with (S (i - 1)) by lia; nra.
  - unfold sum1; rewrite (sumQ_ext P _ (fun i => (tau * B i - 1) + 1))
      by (intros i Hi; replace (S i - 1)%nat with i by lia; ring).
    rewrite sumQ_plus, sumQ_const.
    replace (2 * (P - 1))%nat with ((P - 2) + P)%nat by lia.
    rewrite Qnat_plus; lra.
  - destruct (nested_rings_carry P L HP adm) as (pl & Hn & good & _ & loads).
    exists pl; cbv zeta; split; [easy|]; split; [easy|]; intros r Hr.
    destruct (loads r Hr) as [-> ->].
    enough (E : Qnat (length pl) * L (S r) <= best_time P (length pl) B B * B r)
      by (split; exact E).
    specialize (within (S r) ltac:(lia)); simpl in within; rewrite Nat.sub_0_r in within.
    generalize (best_time_scale P (length pl) B B) (Qnat_pos _ Hn); fold tau.
    generalize (best_time P (length pl) B B); intros T HT Hn'.
    specialize (HB r Hr).
    apply Qle_trans with (Qnat (length pl) * tau * B r); nra.
Qed.
