(* The lower bound [best_time] is reached, for any positive rates.

   Per element, rank r may send b_r = tau * out_r >= 1, and the b_r sum to at
   least 2(P-1).  Give rank r the part y_r of the second column of hubs, with
   (P-2) y_r <= b_r - 1: then it sends 1 + (P-2) y_r <= b_r.  The same for the
   first column and the receivers. *)

From Coq Require Import List Arith Bool QArith Qminmax Lia Lqa.
From optcc Require Import Model Rational Tight.
Import ListNotations.
Open Scope Q_scope.

(* Parts of a whole, each within its limit. *)
Lemma parts P N (a : nat -> Q) :
  (1 <= P)%nat -> (forall i, (i < P)%nat -> 0 <= a i) -> Qnat N <= sumQ P a ->
  exists y : nat -> Q, (forall i, (i < P)%nat -> 0 <= y i) /\ sumQ P y == 1 /\
    (forall i, (i < P)%nat -> Qnat N * y i <= a i).
Proof.
  intros HP Ha HN; destruct N as [|N].
  - exists (fun i => if (i =? 0)%nat then 1 else 0); repeat split.
    + intros i _; destruct (i =? 0)%nat; lra.
    + assert (G : forall k, sumQ (S k) (fun i => if (i =? 0)%nat then 1 else 0) == 1).
      { induction k as [|k IH]; [reflexivity|]; rewrite sumQ_S, IH; simpl; ring. }
      destruct P as [|P]; [lia | apply G].
    + intros i Hi; change (Qnat 0) with 0; rewrite Qmult_0_l; auto.
  - assert (S0 : 0 < sumQ P a).
    { eapply Qlt_le_trans; [|exact HN]; apply Qnat_pos; lia. }
    exists (fun i => a i / sumQ P a); repeat split.
    + intros i Hi; apply Qdiv_nonneg; auto.
    + setoid_replace (sumQ P (fun i => a i / sumQ P a))
        with (/ sumQ P a * sumQ P a) by
        (rewrite <- sumQ_scale; apply sumQ_ext; intros; field; lra).
      field; lra.
    + intros i Hi; setoid_replace (Qnat (S N) * (a i / sumQ P a))
        with (Qnat (S N) * a i / sumQ P a) by (field; lra).
      apply Qdiv_le; [easy|]; rewrite Qmult_comm.
      specialize (Ha i Hi); nra.
Qed.

Lemma scale_max x a b c d : x * a <= c -> x * b <= d -> x * Qmax a b <= Qmax c d.
Proof.
  intros H1 H2; destruct (Q.max_spec a b) as [[_ E]|[_ E]]; rewrite E.
  - eapply Qle_trans; [exact H2 | apply Q.le_max_r].
  - eapply Qle_trans; [exact H1 | apply Q.le_max_l].
Qed.

Lemma best_time_scale P n out inn :
  Qnat n * best_time P 1 out inn <= best_time P n out inn.
Proof.
  unfold best_time; repeat apply scale_max; unfold Qdiv; rewrite Qmult_assoc;
    apply Qle_lteq; right; apply Qmult_comp; try reflexivity;
    rewrite <- Qnat_mult; apply Qeq_refl || (f_equiv; f_equal; lia) ||
    (replace (n * (2 * (P - 1) * 1))%nat with (2 * (P - 1) * n)%nat by lia; reflexivity) ||
    (replace (n * 1)%nat with n by lia; reflexivity).
Qed.

(* What one element per rank leaves over at the rate tau. *)
Lemma spare P tau (rate : rank -> Q) :
  (2 <= P)%nat -> positive P rate ->
  Qnat 1 / minQ P rate <= tau -> Qnat (2 * (P - 1) * 1) / sumQ P rate <= tau ->
  (forall r, (r < P)%nat -> 0 <= tau * rate r - 1) /\
  Qnat (P - 2) <= sumQ P (fun r => tau * rate r - 1).
Proof.
  intros HP Hr H1 H2.
  assert (M : 0 < minQ P rate) by (apply minQ_pos; auto; lia).
  assert (S0 : 0 < sumQ P rate) by (apply sumQ_pos; auto; lia).
  assert (Ht : 0 < tau).
  { eapply Qlt_le_trans; [|exact H1]; apply Qlt_shift_div_l; [easy|].
    rewrite Qmult_0_l; reflexivity. }
  split.
  - intros r Hlt; apply Qle_of_div in H1; [|easy].
    generalize (minQ_le P rate r Hlt); intros L.
    assert (tau * minQ P rate <= tau * rate r) by nra.
    change (Qnat 1) with 1 in H1; lra.
  - apply Qle_of_div in H2; [|easy].
    setoid_replace (sumQ P (fun r => tau * rate r - 1))
      with (tau * sumQ P rate - Qnat P).
    + rewrite !Qnat_mult, Qnat_minus in H2 by lia.
      rewrite Qnat_minus by lia.
      change (Qnat 1) with 1 in H2; change (Qnat 2) with 2 in *; lra.
    + rewrite <- sumQ_scale.
      setoid_replace (Qnat P) with (sumQ P (fun _ => 1))
        by (rewrite sumQ_const; ring).
      setoid_replace (sumQ P (fun r => tau * rate r - 1))
        with (sumQ P (fun r => tau * rate r + (-1) * 1))
        by (apply sumQ_ext; intros; ring).
      rewrite sumQ_plus, (sumQ_scale P (-1)); ring.
Qed.

Theorem lower_bound_attained P (out inn : rank -> Q) :
  (2 <= P)%nat -> positive P out -> positive P inn ->
  exists n s, (0 < n)%nat /\ exactly_once P n s /\
    fits P s (best_time P n out inn) out inn.
Proof.
  intros HP Ho Hi; set (tau := best_time P 1 out inn).
  assert (L : Qnat 1 / minQ P out <= tau /\ Qnat 1 / minQ P inn <= tau /\
    Qnat (2 * (P - 1) * 1) / sumQ P out <= tau /\
    Qnat (2 * (P - 1) * 1) / sumQ P inn <= tau).
  { unfold tau, best_time; repeat split; eauto using Qle_trans, Q.le_max_l, Q.le_max_r. }
  destruct L as (A1 & A2 & A3 & A4).
  destruct (spare P tau out HP Ho A1 A3) as [So1 So2].
  destruct (spare P tau inn HP Hi A2 A4) as [Si1 Si2].
  destruct (parts P (P - 2) _ ltac:(lia) So1 So2) as (y & y0 & y1 & yl).
  destruct (parts P (P - 2) _ ltac:(lia) Si1 Si2) as (z & z0 & z1 & zl).
  destruct (common_denominator (P + P) (fun i => if (i <? P)%nat then y i else z (i - P)%nat))
    as (n & w & Hn & Hw).
  { intros i Hlt; destruct (Nat.ltb_spec i P); [auto | apply z0; lia]. }
  set (wy := w); set (wz := fun r => w (P + r)%nat).
  assert (Wy : forall r, (r < P)%nat -> Qnat (wy r) == Qnat n * y r).
  { intros r Hr; unfold wy; rewrite Hw by lia.
    now rewrite (proj2 (Nat.ltb_lt _ _) Hr). }
  assert (Wz : forall r, (r < P)%nat -> Qnat (wz r) == Qnat n * z r).
  { intros r Hr; unfold wz; rewrite Hw by lia.
    rewrite (proj2 (Nat.ltb_ge _ _)) by lia.
    now replace (P + r - P)%nat with r by lia. }
  destruct (hubs P n wy wz HP) as (s & good & loads).
  { apply Qnat_inj; rewrite Qnat_sumN, (sumQ_ext _ _ _ Wy), sumQ_scale, y1; ring. }
  { apply Qnat_inj; rewrite Qnat_sumN, (sumQ_ext _ _ _ Wz), sumQ_scale, z1; ring. }
  exists n, s; split; [easy|]; split; [easy|]; intros r Hr.
  destruct (loads r Hr) as [E1 E2].
  rewrite E1, E2, !Qnat_plus, !Qnat_mult, (Wy r Hr), (Wz r Hr).
  generalize (best_time_scale P n out inn) (Qnat_pos n Hn); fold tau.
  generalize (best_time P n out inn); intros T HT Hn'.
  specialize (yl r Hr); specialize (zl r Hr); simpl in yl, zl.
  specialize (Ho r Hr); specialize (Hi r Hr).
  split; [apply Qle_trans with (Qnat n * tau * out r)
         | apply Qle_trans with (Qnat n * tau * inn r)]; nra.
Qed.
