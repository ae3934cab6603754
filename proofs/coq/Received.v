(* What all ranks receive, given what they lack: step 5 of ../written/coding.md, for
   messages with costs that obey Kraft's inequality, as alphabets and prefix codes do. *)

From Coq Require Import List Arith Bool QArith Lia Lqa.
From optcc Require Import Model Protocols Rational Products Means Entropy Coding.
Import ListNotations.
Open Scope nat_scope.

(* ------------------------------------------------------------------------ *)
(* All choices of inputs                                                      *)

Section Choices.
Context {X : Type}.
Variable A : list X.

Lemma in_choices P x :
  In x (choices A P) <-> length x = P /\ forall a, In a x -> In a A.
Proof.
  revert x; induction P as [|P IH]; intros x; simpl.
  - split; [intros [<-|[]]; now split|]; intros [L _]; left; now destruct x.
  - rewrite in_flat_map; split.
    + intros (a & Ia & I); apply in_map_iff in I; destruct I as (y & <- & I).
      apply IH in I; destruct I as [L I]; simpl; split; [lia|]; intros b [<-|J]; auto.
    + intros [L I]; destruct x as [|a x]; [easy|]; exists a; split; [apply I; now left|].
      apply in_map, IH; split; [simpl in L; lia | intros; apply I; now right].
Qed.

Lemma choices_ranks P x : In x (choices A P) -> length x = P.
Proof. intros I; now apply in_choices in I. Qed.

Lemma some_choice P : 0 < length A -> exists z, In z (choices A P).
Proof.
  intros L; destruct A as [|a A'] eqn:E; [simpl in L; lia|]; exists (repeat a P).
  rewrite <- E; apply in_choices; split; [apply repeat_length|].
  intros b I; apply repeat_spec in I; subst; now left.
Qed.

Lemma choices_length P : length (choices A P) = length A ^ P.
Proof.
  induction P as [|P IH]; simpl; [easy|]; rewrite <- IH.
  generalize (choices A P) as l; intros l; clear; induction A as [|a A' IH]; simpl; [easy|].
  now rewrite app_length, map_length, IH.
Qed.

Lemma NoDup_app {U} (l l' : list U) :
  NoDup l -> NoDup l' -> (forall u, In u l -> ~ In u l') -> NoDup (l ++ l').
Proof.
  induction l as [|u l IH]; simpl; intros N N' D; [easy|]; inversion_clear N.
  constructor; [|apply IH; auto].
  rewrite in_app_iff; intros [I|I]; [easy | apply (D u); auto].
Qed.

Lemma NoDup_map {U U'} (f : U -> U') l :
  (forall u v, In u l -> In v l -> f u = f v -> u = v) -> NoDup l -> NoDup (map f l).
Proof.
  induction l as [|u l IH]; simpl; intros inj N; [constructor|]; inversion_clear N.
  constructor; [|apply IH; auto].
  rewrite in_map_iff; intros (v & E & I); rewrite (inj v u) in I; auto.
Qed.

Lemma choices_once P : NoDup A -> NoDup (choices A P).
Proof.
  intros N; induction P as [|P IH]; simpl; [repeat constructor; easy|].
  generalize dependent (choices A P); intros l N'.
  induction N as [|a A' Na N IHA]; simpl; [constructor|].
  apply NoDup_app; [| easy |].
  - apply NoDup_map; [congruence | easy].
  - intros x I J; apply in_map_iff in I; destruct I as (y & <- & I).
    apply in_flat_map in J; destruct J as (b & Ib & J); apply in_map_iff in J.
    destruct J as (z & [= -> _] & _); easy.
Qed.
End Choices.

Lemma list_prod_once {A B} (l : list A) (l' : list B) :
  NoDup l -> NoDup l' -> NoDup (list_prod l l').
Proof.
  intros N N'; induction N as [|a l Na N IH]; simpl; [constructor|].
  apply NoDup_app; [apply NoDup_map; [congruence | easy] | easy |].
  intros [a' b] I J; apply in_map_iff in I; destruct I as (b' & [= -> ->] & _).
  now apply in_prod_iff in J.
Qed.

(* ------------------------------------------------------------------------ *)
(* What is received                                                           *)

Lemma square P M : 2 <= P -> (P - 1) * M * (P - 2) + M * P + 2 * (P - 1) * M = P * M * P.
Proof. destruct P as [|[|k]]; intros; lia. Qed.

Section Received.
Context {X V Y : Type} `{Eq X} `{Eq V} `{Eq Y}.
Variables (none : X) (P : nat) (f : list X -> Y) (A : list X).
Hypothesis HP : 2 <= P.
Hypothesis solvable : forall x k a, length x = P -> k < P ->
  f (put k a x) = f x -> a = own none x k.
Hypothesis A_once : NoDup A.
Hypothesis A_some : 0 < length A.

Notation cases := (choices A P).
Notation g := (length A).
Notation N := (length A ^ P).

Lemma all_product_set : product_set none P cases.
Proof.
  split; [now apply choices_once | split].
  - intros x I; now apply in_choices in I.
  - intros x y k Ix Iy Hk; apply in_choices in Ix; apply in_choices in Iy.
    apply in_choices; rewrite put_length; split; [easy|]; intros b I.
    destruct (in_put _ _ _ _ I) as [J| ->]; [now apply Ix|].
    apply Iy, nth_In; lia.
Qed.

(* The result tells one input if the others are known: H(inputs | result) <= (P-1) n. *)
Lemma result_lacks : ignorance f cases <= g ^ ((P - 1) * N).
Proof.
  rewrite Nat.pow_mul_r, <- (choices_length A P), <- prod_const.
  apply prod_le; intros x Ix; rewrite !alike_def.
  rewrite <- (map_length (@tl X)), <- (choices_length A (P - 1)).
  apply NoDup_incl_length.
  - apply NoDup_map; [|now apply NoDup_filter, choices_once].
    intros y z Iy Iz E; apply in_having in Iy; apply in_having in Iz.
    destruct Iy as [Iy Ey], Iz as [Iz Ez]; apply in_choices in Iy; apply in_choices in Iz.
    destruct y as [|b y], z as [|c z]; simpl in *; try (exfalso; lia); subst z; f_equal.
    apply (solvable (c :: y) 0 b); [easy | lia | simpl; congruence].
  - intros y I; apply in_map_iff in I; destruct I as (z & <- & I).
    apply in_having in I; destruct I as [I _]; apply in_choices in I; apply in_choices.
    destruct z as [|b z]; simpl in *; [exfalso; lia|]; split; [lia|].
    intros; apply I; now right.
Qed.

Variable p : tree X V.
Hypothesis inside : between P p.
Hypothesis know : all_know none P f p cases.

(* If what rank r may have costs c r, such that the inverses of cases costs sum to one
   for each input (Kraft's inequality): *)
Variable c : rank -> X * list V -> nat.
Hypothesis c_pos : forall r u, 0 < c r u.
Hypothesis kraft : forall r, r < P ->
  (total (fun u => 1 / Qnat (c r u)) (different (view none r p) cases) <= Qnat g)%Q.

Lemma costs r : r < P ->
  N ^ N
  <= ignorance (view none r p) cases * (g ^ N * prod (fun x => c r (view none r p x)) cases).
Proof.
  intros Hr; rewrite Nat.mul_assoc, <- (choices_length A P); apply source_coding; auto.
Qed.

Theorem received_bound :
  g ^ (2 * (P - 1) * N) <= prod (fun r => prod (fun x => c r (view none r p x)) cases) (seq 0 P).
Proof.
  set (C := prod (fun r => prod (fun x => c r (view none r p x)) cases) (seq 0 P)).
  assert (L := lacking none P f HP solvable p cases inside all_product_set know).
  assert (F := Nat.pow_le_mono_l _ _ (P - 2) result_lacks).
  rewrite <- Nat.pow_mul_r in F.
  assert (S : (N ^ N) ^ P <= prod (fun r => ignorance (view none r p) cases) (seq 0 P)
                             * ((g ^ N) ^ P * C)).
  { assert (len : P = length (seq 0 P)) by now rewrite seq_length.
    rewrite len at 3; rewrite len at 6; unfold C; rewrite <- !prod_const, <- !prod_mul.
    apply prod_le; intros r I; apply in_seq in I; apply costs; lia. }
  rewrite <- !Nat.pow_mul_r in S.
  assert (T : g ^ (P * N * P) <= g ^ ((P - 1) * N * (P - 2) + N * P) * C).
  { replace (P * N * P) with (P * (N * P)) by lia; eapply Nat.le_trans; [exact S|].
    rewrite Nat.pow_add_r, <- (Nat.mul_assoc (g ^ _)); apply Nat.mul_le_mono_r.
    exact (Nat.le_trans _ _ _ L F). }
  replace (P * N * P) with (((P - 1) * N * (P - 2) + N * P) + 2 * (P - 1) * N) in T.
  - rewrite Nat.pow_add_r in T; apply Nat.mul_le_mono_pos_l in T; [easy|].
    apply Nat.neq_0_lt_0, Nat.pow_nonzero; lia.
  - now apply square.
Qed.

(* Two ranks: each must receive the other's input. *)
Theorem received_by_each r : P = 2 -> r < P ->
  g ^ N <= prod (fun x => c r (view none r p x)) cases.
Proof.
  intros E Hr.
  assert (L := lacking none P f HP solvable p cases inside all_product_set know).
  replace (P - 2) with 0 in L by lia; rewrite Nat.pow_0_r in L.
  assert (one : ignorance (view none r p) cases = 1).
  { assert (I : In r (seq 0 P)) by (apply in_seq; lia).
    destruct (in_split _ _ I) as (l1 & l2 & El); rewrite El, prod_app, prod_cons in L.
    assert (pos : forall l, 0 < prod (fun r => ignorance (view none r p) cases) l)
      by (intros; apply prod_pos; intros; apply ignorance_pos).
    generalize (pos l1) (pos l2) (ignorance_pos (view none r p) cases); nia. }
  assert (S := costs r Hr); rewrite one, Nat.mul_1_l in S.
  replace (N ^ N) with (g ^ N * g ^ N) in S.
  - apply Nat.mul_le_mono_pos_l in S; [easy | apply Nat.neq_0_lt_0, Nat.pow_nonzero; lia].
  - rewrite <- Nat.pow_mul_l, E; f_equal; simpl; lia.
Qed.
End Received.
