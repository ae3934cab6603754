(* One straggler at 1/l of the others' rate: the two bounds in closed form, where
   they cross, and the 1/(P-1) ceiling. *)

From Coq Require Import List Arith Bool QArith Qminmax Lia Lqa.
From optcc Require Import Model Rational.
Import ListNotations.
Open Scope Q_scope.

(* With equal rates out and in, best_time is the larger of two numbers. *)
Lemma best_time_symmetric P n B :
  best_time P n B B == Qmax (Qnat n / minQ P B) (Qnat (2 * (P - 1) * n) / sumQ P B).
Proof. unfold best_time; now rewrite !Q.max_id. Qed.

Lemma max_scale x a b c d :
  0 <= x -> c == x * a -> d == x * b -> Qmax c d == x * Qmax a b.
Proof.
  intros Hx Hc Hd; destruct (Q.max_spec a b) as [[L E]|[L E]]; rewrite E.
  - rewrite Q.max_r; [exact Hd|]; nra.
  - rewrite Q.max_l; [exact Hc|]; nra.
Qed.

Lemma minQ_is k f x i :
  (i < k)%nat -> f i == x -> (forall j, (j < k)%nat -> x <= f j) -> minQ k f == x.
Proof.
  intros Hi E H; apply Qle_antisym.
  - rewrite <- E; now apply minQ_le.
  - apply minQ_greatest; [lia | exact H].
Qed.

Section Straggler.
Variables (P n : nat) (B l : Q).
Hypothesis HP : (2 <= P)%nat.
Hypothesis HB : 0 < B.
Hypothesis Hl : 1 <= l.

(* p stands for P as a rational, so that field and nra see plain variables. *)
Let p := Qnat P.

Lemma p_ge_2 : 2 <= p.
Proof. apply (Qnat_le 2 P), HP. Qed.

Lemma p_minus_1 : Qnat (P - 1) == p - 1.
Proof. rewrite Qnat_minus by lia; reflexivity. Qed.

Lemma two_p_minus_2 : Qnat (2 * (P - 1)) == 2 * (p - 1).
Proof. rewrite Qnat_mult, p_minus_1; reflexivity. Qed.

Lemma inv_l : 0 < 1 / l /\ 1 / l <= 1.
Proof.
  split; [apply Qlt_shift_div_l; lra | apply Qdiv_le; lra].
Qed.

Theorem healthy_time :
  best_time P n (healthy B) (healthy B) == Qnat (2 * (P - 1) * n) / (Qnat P * B).
Proof.
  pose proof p_ge_2; pose proof (Qnat_nonneg n).
  rewrite best_time_symmetric.
  assert (E1 : minQ P (healthy B) == B)
    by (apply (minQ_is _ _ _ 0%nat); unfold healthy; intros; lia || lra).
  assert (E2 : sumQ P (healthy B) == p * B) by apply sumQ_const.
  rewrite E1, E2, Qnat_mult, two_p_minus_2; fold p; apply Q.max_r.
  (* 1 <= 2 (P-1) / P *)
  apply Qdiv_le; [easy|].
  setoid_replace (2 * (p - 1) * Qnat n / (p * B) * B)
    with (2 * (p - 1) * Qnat n / p) by (field; split; lra).
  apply Qle_shift_div_l; nra.
Qed.

Theorem straggler_time :
  best_time P n (straggler B l) (straggler B l)
  == best_time P n (healthy B) (healthy B) * overhead P l.
Proof.
  pose proof p_ge_2; pose proof (Qnat_nonneg n); pose proof inv_l as [L0 L1].
  rewrite healthy_time, best_time_symmetric, Q.max_comm.
  assert (Bl : B / l <= B) by (apply Qdiv_le; nra).
  assert (E1 : minQ P (straggler B l) == B / l).
  { apply (minQ_is _ _ _ 0%nat); [lia | reflexivity|]; intros [|j] _;
      unfold straggler; simpl; lra. }
  assert (E2 : sumQ P (straggler B l) == B / l + (p - 1) * B).
  { replace P with (1 + (P - 1))%nat at 1 by lia; rewrite sumQ_split.
    rewrite (sumQ_ext (P - 1) _ (fun _ => B)) by reflexivity.
    rewrite sumQ_const, p_minus_1.
    unfold sumQ, straggler; simpl; ring. }
  rewrite E1, E2, !Qnat_mult, p_minus_1; fold p; change (Qnat 2) with 2.
  unfold overhead; rewrite two_p_minus_2, p_minus_1; fold p.
  apply max_scale.
  - apply Qdiv_nonneg; nra.
  - assert (0 < (p - 1) * B * l) by (repeat apply Qmult_lt_0_compat; lra).
    field; repeat split; try lra; nra.
  - field; repeat split; lra.
Qed.

(* The bounds cross at l_c = (2P-3)/(P-1).  Both have the numerator l P once the
   first is written with the denominator l (P-1) + 1. *)
Lemma traffic_form : p / ((p - 1) + 1 / l) == l * p / (l * (p - 1) + 1).
Proof. pose proof p_ge_2; field; repeat split; nra. Qed.

Lemma l_c : Qnat (2 * P - 3) / Qnat (P - 1) == (2 * p - 3) / (p - 1).
Proof. rewrite Qnat_minus, Qnat_mult, p_minus_1 by lia; reflexivity. Qed.

Lemma fraction_le a b c : 0 <= a -> 0 < b -> b <= c -> a / c <= a / b.
Proof.
  intros Ha Hb Hc; apply Qdiv_le; [lra|].
  setoid_replace (a / b * c) with (a * c / b) by (field; lra).
  apply Qle_shift_div_l; nra.
Qed.

Theorem switch_below : l <= Qnat (2 * P - 3) / Qnat (P - 1) ->
  overhead P l == Qnat P / (Qnat (P - 1) + 1 / l).
Proof.
  rewrite l_c; intros H; pose proof p_ge_2; unfold overhead; apply Q.max_l.
  rewrite two_p_minus_2, p_minus_1; fold p; rewrite traffic_form.
  apply (Qmult_le_compat_r _ _ (p - 1)) in H; [|lra].
  setoid_replace ((2 * p - 3) / (p - 1) * (p - 1)) with (2 * p - 3) in H by (field; lra).
  apply fraction_le; nra.
Qed.

Theorem switch_above : Qnat (2 * P - 3) / Qnat (P - 1) <= l ->
  overhead P l == l * Qnat P / Qnat (2 * (P - 1)).
Proof.
  rewrite l_c; intros H; pose proof p_ge_2; unfold overhead; apply Q.max_r.
  rewrite two_p_minus_2, p_minus_1; fold p; rewrite traffic_form.
  apply Qle_of_div in H; [|lra].
  apply fraction_le; nra.
Qed.

Lemma at_least_one : 1 <= overhead P l.
Proof.
  pose proof p_ge_2; pose proof inv_l as [L0 L1].
  unfold overhead; rewrite p_minus_1; fold p.
  eapply Qle_trans; [|apply Q.le_max_l].
  apply Qle_shift_div_l; lra.
Qed.
(* Up to half the rate lost: at most 1/(P-1) more than without a failure. *)
Theorem one_over_p : l <= 2 ->
  1 <= overhead P l /\ overhead P l <= 1 + 1 / Qnat (P - 1).
Proof.
  intros H2; split; [apply at_least_one|].
  pose proof p_ge_2; pose proof inv_l as [L0 L1].
  unfold overhead; rewrite two_p_minus_2, p_minus_1; fold p.
  setoid_replace (1 + 1 / (p - 1)) with (p / (p - 1)) by (field; lra).
  apply Q.max_lub.
  - apply Qdiv_le; [lra|].
    setoid_replace (p / (p - 1) * (p - 1 + 1 / l))
      with (p + p / (p - 1) * (1 / l)) by (field; split; lra).
    assert (0 <= p / (p - 1)) by (apply Qdiv_nonneg; lra); nra.
  - apply Qdiv_le; [lra|].
    setoid_replace (p / (p - 1) * (2 * (p - 1))) with (2 * p) by (field; lra); nra.
Qed.
End Straggler.

Theorem one_over_p_exact P : (2 <= P)%nat -> overhead P 2 == 1 + 1 / Qnat (P - 1).
Proof.
  intros HP; pose proof (p_ge_2 P HP) as H.
  rewrite switch_above; [| exact HP | lra |].
  - rewrite two_p_minus_2, p_minus_1 by exact HP; field; lra.
  - apply Qdiv_le; [apply Qnat_pos; lia|].
    rewrite Qnat_minus, Qnat_mult, p_minus_1 by lia.
    change (Qnat 2) with 2; change (Qnat 3) with 3; lra.
Qed.
