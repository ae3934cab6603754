(* No protocol sends less than 2(P-1) n: the proof, for trees.

   The heart is [lacking]: added up over the ranks, what they still lack of all inputs
   in the end is at most P-2 times what the result lacks.  Steps are numbered as in
   ../written/coding.md, which goes the same way in words. *)

From Coq Require Import List Arith Bool QArith Lia Lqa.
From optcc Require Import Model Protocols Rational Products Means Entropy.
Import ListNotations.
Open Scope nat_scope.

(* ------------------------------------------------------------------------ *)
(* Exchanging one rank's input                                                *)

Section Put.
Context {X : Type}.
Variable none : X.

Fixpoint put (k : nat) (a : X) (x : list X) : list X :=
  match x, k with
  | [], _ => []
  | _ :: x, 0 => a :: x
  | b :: x, S k => b :: put k a x
  end.

Lemma put_length k a x : length (put k a x) = length x.
Proof. revert k; induction x as [|b x IH]; intros [|k]; simpl; auto. Qed.

Lemma own_put k a x : k < length x -> own none (put k a x) k = a.
Proof.
  revert k; induction x as [|b x IH]; intros [|k] L; simpl in *; try easy.
  apply IH; lia.
Qed.

Lemma own_put_other k a x r : r <> k -> own none (put k a x) r = own none x r.
Proof.
  revert k r; induction x as [|b x IH]; intros [|k] [|r] N; simpl; try easy.
  apply IH; lia.
Qed.

Lemma in_put k a b x : In b (put k a x) -> In b x \/ b = a.
Proof.
  revert k; induction x as [|c x IH]; intros [|k]; simpl; try tauto.
  - intros [<-|I]; auto.
  - intros [<-|I]; [auto|]; apply IH in I; tauto.
Qed.

Lemma own_ext x y :
  length x = length y -> (forall r, r < length x -> own none x r = own none y r) -> x = y.
Proof. intros L H; now apply (nth_ext _ _ none none). Qed.
End Put.

(* ------------------------------------------------------------------------ *)
(* Trees                                                                      *)

Section Coding.
Context {X V Y : Type} `{Eq X} `{Eq V} `{Eq Y}.
Variables (none : X) (P : nat) (f : list X -> Y).
Hypothesis HP : 2 <= P.

(* All that is needed of the sum: the result and all inputs but one tell that one. *)
Hypothesis solvable : forall x k a, length x = P -> k < P ->
  f (put k a x) = f x -> a = own none x k.

(* A product of sets: each rank's input may be exchanged for another possible one. *)
Definition product_set (l : list (list X)) : Prop :=
  NoDup l /\ (forall x, In x l -> length x = P) /\
  (forall x y k, In x l -> In y l -> k < P -> In (put k (own none y k) x) l).

(* What rank r has in the end. *)
Definition view (r : rank) (p : tree X V) : list X -> X * list V :=
  pair (fun x => own none x r) (heard none r p).

Definition all_know (p : tree X V) (l : list (list X)) : Prop :=
  forall r, r < P -> tells l (view r p) f.

(* Step 1: what stays possible after a message is again a product of sets. *)
Lemma product_sets k (says : X -> V) v l :
  product_set l -> product_set (having (fun x => says (own none x k)) v l).
Proof.
  intros (N & L & R); split; [now apply NoDup_filter | split].
  - intros x I; apply in_having in I; now apply L.
  - intros x y i Ix Iy Hi; apply in_having in Ix; apply in_having in Iy.
    destruct Ix as [Ix Ex], Iy as [Iy Ey]; apply in_having; split; [now apply R|].
    destruct (Nat.eq_dec k i) as [->|Ne].
    + now rewrite own_put by (rewrite L; auto).
    + now rewrite own_put_other.
Qed.

(* Step 2: if nothing more is said and every rank can tell the result, which then is from
   its own input, there is only one case left. *)
Lemma one_case l x y : product_set l -> all_know Stop l -> In x l -> In y l -> x = y.
Proof.
  intros (N & L & R) K Ix Iy; apply (own_ext none); [now rewrite !L|].
  intros k Hk; rewrite L in Hk by easy; symmetry; apply solvable; [now apply L | easy |].
  set (r := if k =? 0 then 1 else 0).
  assert (r < P /\ r <> k) as [Hr Ne] by (unfold r; destruct (Nat.eqb_spec k 0); lia).
  apply (K r Hr); [now apply R | easy |]; unfold view, pair; simpl; f_equal.
  now apply own_put_other.
Qed.

(* Step 3: message m of k to j tells nothing to k and j, given what they have in the end
   and what was sent before; and anybody else no more than one who has the result. *)
Definition seen_with (r k j : rank) (F : nat) : nat :=
  if (r =? k) || (r =? j) then 1 else F.

Lemma told r k j (says : X -> V) next l :
  let p := Say k j says next in
  let m := fun x => says (own none x k) in
  let rest := pair (fun x => own none x r) (fun x => heard none r (next (m x)) x) in
  all_know p l -> r < P ->
  ignorance (view r p) l * seen_with r k j (ignorance (pair f m) l)
  <= ignorance (pair rest m) l * seen_with r k j (ignorance f l).
Proof.
  intros p m rest K Hr; unfold seen_with.
  destruct ((r =? k) || (r =? j)) eqn:E.
  - rewrite !Nat.mul_1_r; apply tells_le; intros x y Ix Iy.
    unfold view, rest, pair; simpl; fold (m x) (m y).
    apply orb_true_iff in E; destruct E as [E|E]; apply Nat.eqb_eq in E; subst r.
    + intros [= Ek Eh]; assert (Em : m x = m y) by (unfold m; congruence).
      destruct (k =? j); [injection Eh as _ Eh|]; congruence.
    + rewrite Nat.eqb_refl; intros [=]; congruence.
  - apply orb_false_iff in E; destruct E as [_ E].
    eapply Nat.le_trans; [apply (conditioning (view r p) f m), K, Hr|].
    apply Nat.mul_le_mono_r, Nat.eq_le_incl, tells_eq; intros x y _ _;
      unfold view, rest, pair; simpl; fold (m x) (m y); rewrite E; congruence.
Qed.

(* Step 4: P-2 ranks are neither sender nor receiver, *)
Lemma others k j F : 0 < F -> k < P -> j < P -> k <> j ->
  prod (fun r => seen_with r k j F) (seq 0 P) = F ^ (P - 2).
Proof.
  intros pos Hk Hj N.
  assert (one : forall i n, prod (fun r => if r =? i then F else 1) (seq 0 n)
                            = if i <? n then F else 1).
  { intros i; induction n as [|n IH]; [easy|].
    rewrite seq_S, prod_app, IH; simpl; rewrite prod_cons; change (prod _ []) with 1.
    destruct (Nat.ltb_spec i n), (Nat.ltb_spec i (S n)), (Nat.eqb_spec n i); lia. }
  assert (Ek := one k P); rewrite (proj2 (Nat.ltb_lt k P) Hk) in Ek.
  assert (Ej := one j P); rewrite (proj2 (Nat.ltb_lt j P) Hj) in Ej.
  assert (E : prod (fun r => seen_with r k j F) (seq 0 P) * F * F = F ^ (P - 2) * F * F).
  2:{ apply Nat.mul_cancel_r in E; [|lia]; apply Nat.mul_cancel_r in E; lia. }
  transitivity (F ^ P).
  2:{ replace P with (S (S (P - 2))) at 1 by lia; simpl Nat.pow; lia. }
  rewrite <- (f_equal2 Nat.mul (f_equal (Nat.mul _) Ek) Ej), <- !prod_mul.
  transitivity (prod (fun _ => F) (seq 0 P)); [|now rewrite prod_const, seq_length].
  apply prod_ext; intros r _; unfold seen_with.
  destruct (Nat.eqb_spec r k), (Nat.eqb_spec r j); simpl; lia.
Qed.

(* and all ranks together, message by message, lack no more than P-2 times what the
   result lacks. *)
Theorem lacking p : forall l, between P p -> product_set l -> all_know p l ->
  prod (fun r => ignorance (view r p) l) (seq 0 P) <= ignorance f l ^ (P - 2).
Proof.
  induction p as [|k j says next IH]; intros l B S K.
  - (* nothing is left unknown *)
    apply Nat.le_trans with (prod (fun _ => 1) (seq 0 P)).
    + apply prod_le; intros r _.
      apply Nat.le_trans with (prod (fun _ => 1) l); [|now rewrite prod_const, Nat.pow_1_l].
      apply prod_le; intros x Ix; rewrite !alike_def.
      assert (N := proj1 S).
      apply (Nat.le_trans _ (length l)); [apply having_length|].
      destruct l as [|a [|b l]]; simpl; try lia; exfalso.
      assert (E : a = b) by (apply (one_case (a :: b :: l)); simpl; auto).
      inversion_clear N as [|? ? Na _]; apply Na; now left.
    + rewrite prod_const, Nat.pow_1_l; apply Nat.neq_0_lt_0, Nat.pow_nonzero.
      generalize (ignorance_pos f l); lia.
  - destruct B as (Hk & Hj & N & B).
    set (p := Say k j says next) in *; set (m := fun x => says (own none x k)).
    set (rest := fun r => pair (fun x => own none x r) (fun x => heard none r (next (m x)) x)).
    set (F := ignorance f l); set (Fm := ignorance (pair f m) l).
    assert (posF : 0 < F) by apply ignorance_pos.
    assert (posFm : 0 < Fm) by apply ignorance_pos.
    (* the induction hypothesis, multiplied over the values of m *)
    assert (later : prod (fun r => ignorance (pair (rest r) m) l) (seq 0 P) <= Fm ^ (P - 2)).
    { unfold Fm; rewrite chain_rule, <- prod_pow.
      rewrite (prod_ext _ (fun r => prod (fun v => ignorance (view r (next v)) (having m v l))
                                         (different m l))).
      - rewrite prod_swap; apply prod_le; intros v _; apply IH; auto.
        + now apply product_sets.
        + intros r Hr x y Ix Iy E; apply in_having in Ix; apply in_having in Iy.
          destruct Ix as [Ix Ex], Iy as [Iy Ey]; apply (K r Hr); auto.
          unfold view, pair, p in *; simpl; fold (m x) (m y); rewrite Ex, Ey.
          injection E as E1 E2; rewrite E1, E2; easy.
      - intros r _; rewrite chain_rule; apply prod_ext; intros v _.
        apply tells_eq; intros x y Ix Iy; apply in_having in Ix; apply in_having in Iy;
          destruct Ix as [_ Ex], Iy as [_ Ey]; unfold view, rest, pair; now rewrite Ex, Ey. }
    assert (now_ : prod (fun r => ignorance (view r p) l) (seq 0 P) * Fm ^ (P - 2)
                   <= prod (fun r => ignorance (pair (rest r) m) l) (seq 0 P) * F ^ (P - 2)).
    { rewrite <- (others k j F), <- (others k j Fm), <- !prod_mul by easy.
      apply prod_le; intros r I; apply in_seq in I; apply told; [easy | lia]. }
    assert (0 < Fm ^ (P - 2)) by (apply Nat.neq_0_lt_0, Nat.pow_nonzero; lia).
    apply (Nat.mul_le_mono_pos_r _ _ (Fm ^ (P - 2))); [easy|].
    eapply Nat.le_trans; [exact now_|].
    rewrite Nat.mul_comm; now apply Nat.mul_le_mono_l.
Qed.
End Coding.
