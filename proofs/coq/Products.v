(* Products over lists, and splitting a list by the values of a function. *)

From Coq Require Import List Arith Bool Lia Permutation Setoid Morphisms.
From optcc Require Import Protocols.
Import ListNotations.
Open Scope nat_scope.

(* ------------------------------------------------------------------------ *)
(* Types whose values can be told apart                                       *)

Definition same {A} `{Eq A} (a b : A) : bool := if eq_dec a b then true else false.

Lemma same_true {A} `{Eq A} (a b : A) : same a b = true <-> a = b.
Proof. unfold same; destruct (eq_dec a b); split; congruence. Qed.

Lemma same_refl {A} `{Eq A} (a : A) : same a a = true.
Proof. now apply same_true. Qed.

(* Where f has a given value. *)
Definition having {W U} `{Eq U} (f : W -> U) (u : U) (l : list W) : list W :=
  filter (fun w => same (f w) u) l.

Lemma in_different {W U} `{Eq U} (f : W -> U) l u :
  In u (different f l) <-> exists w, In w l /\ f w = u.
Proof.
  unfold different; rewrite nodup_In, in_map_iff; split; intros (w & A & B); now exists w.
Qed.

Lemma in_having {W U} `{Eq U} (f : W -> U) u l w :
  In w (having f u l) <-> In w l /\ f w = u.
Proof. unfold having; now rewrite filter_In, same_true. Qed.

(* ------------------------------------------------------------------------ *)
(* Folds of a commutative operation                                           *)

Section Folds.
Context {M : Type} (R : M -> M -> Prop) {HR : Equivalence R}.
Variables (op : M -> M -> M) (e : M).
Context {Hop : Proper (R ==> R ==> R) op}.
Hypothesis unit : forall a, R (op e a) a.
Hypothesis comm : forall a b, R (op a b) (op b a).
Hypothesis assoc : forall a b c, R (op a (op b c)) (op (op a b) c).

Definition fold {W} (f : W -> M) (l : list W) : M := fold_right (fun w => op (f w)) e l.

Lemma fold_op {W} (f g : W -> M) l :
  R (fold (fun w => op (f w) (g w)) l) (op (fold f l) (fold g l)).
Proof.
  induction l as [|w l IH]; simpl; [now rewrite unit|].
  rewrite IH, !assoc; apply Hop; [|reflexivity].
  rewrite <- !assoc; apply Hop; [reflexivity | apply comm].
Qed.

Lemma fold_unit {W} (l : list W) : R (fold (fun _ => e) l) e.
Proof. induction l as [|w l IH]; simpl; [reflexivity | now rewrite unit]. Qed.

Lemma fold_ext {W} (f g : W -> M) l :
  (forall w, In w l -> R (f w) (g w)) -> R (fold f l) (fold g l).
Proof.
  induction l as [|w l IH]; simpl; intros H; [reflexivity|].
  apply Hop; [apply H | apply IH; intros; apply H]; auto.
Qed.

Lemma fold_swap {W W'} (f : W -> W' -> M) l l' :
  R (fold (fun w => fold (f w) l') l) (fold (fun w' => fold (fun w => f w w') l) l').
Proof.
  induction l as [|w l IH]; simpl; [now rewrite fold_unit|].
  now rewrite IH, <- fold_op.
Qed.

Lemma fold_filter {W} (f : W -> M) p l :
  R (fold f (filter p l)) (fold (fun w => if p w then f w else e) l).
Proof.
  induction l as [|w l IH]; simpl; [reflexivity|].
  destruct (p w); simpl; rewrite IH; [|rewrite unit]; reflexivity.
Qed.

(* Value by value. *)
Lemma fold_different {W U} `{Eq U} (h : W -> U) (f : W -> M) l :
  R (fold f l) (fold (fun u => fold f (having h u l)) (different h l)).
Proof.
  assert (one : forall (us : list U) u a, NoDup us -> In u us ->
    R (fold (fun u' => if same u u' then a else e) us) a).
  { induction us as [|v us IH]; simpl; intros u a N I; [easy|].
    inversion_clear N as [|? ? Nv N']; destruct I as [->|I].
    - rewrite same_refl, comm.
      transitivity (op (fold (fun _ => e) us) a); [|now rewrite fold_unit, unit].
      apply Hop; [|reflexivity]; apply fold_ext; intros u' I; unfold same.
      destruct (eq_dec u u') as [->|]; [easy | reflexivity].
    - rewrite IH by auto; unfold same; destruct (eq_dec u v) as [->|]; [easy | apply unit]. }
  assert (gen : forall us, NoDup us -> (forall w, In w l -> In (h w) us) ->
    R (fold f l) (fold (fun u => fold f (having h u l)) us)).
  { intros us N I.
    transitivity (fold (fun w => fold (fun u => if same (h w) u then f w else e) us) l).
    - apply fold_ext; intros w J; symmetry; apply one; auto.
    - rewrite fold_swap; apply fold_ext; intros u _; unfold having.
      symmetry; apply fold_filter. }
  apply gen; [apply NoDup_nodup|]; intros w I; apply in_different; now exists w.
Qed.
End Folds.

(* ------------------------------------------------------------------------ *)
(* Products of naturals                                                       *)

Arguments prod : simpl never.

Lemma prod_mul {W} (f g : W -> nat) l : prod (fun w => f w * g w) l = prod f l * prod g l.
Proof. exact (fold_op eq Nat.mul 1 Nat.mul_1_l Nat.mul_comm Nat.mul_assoc f g l). Qed.

Lemma prod_ext {W} (f g : W -> nat) l :
  (forall w, In w l -> f w = g w) -> prod f l = prod g l.
Proof. exact (fold_ext eq Nat.mul 1 f g l). Qed.

Lemma prod_swap {W W'} (f : W -> W' -> nat) l l' :
  prod (fun w => prod (f w) l') l = prod (fun w' => prod (fun w => f w w') l) l'.
Proof. exact (fold_swap eq Nat.mul 1 Nat.mul_1_l Nat.mul_comm Nat.mul_assoc f l l'). Qed.

Lemma prod_different {W U} `{Eq U} (h : W -> U) (f : W -> nat) l :
  prod f l = prod (fun u => prod f (having h u l)) (different h l).
Proof.
  exact (fold_different eq Nat.mul 1 Nat.mul_1_l Nat.mul_comm Nat.mul_assoc h f l).
Qed.

Lemma prod_const {W} c (l : list W) : prod (fun _ => c) l = c ^ length l.
Proof.
  induction l as [|w l IH]; [easy|].
  change (c * prod (fun _ => c) l = c * c ^ length l); now rewrite IH.
Qed.

Lemma prod_pow {W} (f : W -> nat) k l : prod (fun w => f w ^ k) l = prod f l ^ k.
Proof.
  induction l as [|w l IH]; [symmetry; apply Nat.pow_1_l|].
  change (f w ^ k * prod (fun w => f w ^ k) l = (f w * prod f l) ^ k).
  now rewrite IH, Nat.pow_mul_l.
Qed.

Lemma prod_le {W} (f g : W -> nat) l :
  (forall w, In w l -> f w <= g w) -> prod f l <= prod g l.
Proof.
  induction l as [|w l IH]; intros H; [easy|]; apply Nat.mul_le_mono.
  - apply H; now left.
  - apply IH; intros; apply H; now right.
Qed.

Lemma prod_pos {W} (f : W -> nat) l : (forall w, In w l -> 0 < f w) -> 0 < prod f l.
Proof.
  intros H; apply Nat.lt_le_trans with (prod (fun _ => 1) l); [|now apply prod_le].
  rewrite prod_const, Nat.pow_1_l; lia.
Qed.

Lemma prod_app {W} (f : W -> nat) l l' : prod f (l ++ l') = prod f l * prod f l'.
Proof.
  induction l as [|w l IH]; [symmetry; apply Nat.mul_1_l|].
  change (f w * prod f (l ++ l') = f w * prod f l * prod f l'); rewrite IH; lia.
Qed.

Lemma prod_cons {W} (f : W -> nat) w l : prod f (w :: l) = f w * prod f l.
Proof. easy. Qed.

Lemma prod_map {W U} (g : W -> U) (f : U -> nat) l :
  prod f (map g l) = prod (fun w => f (g w)) l.
Proof. induction l as [|w l IH]; [easy|]; simpl map; now rewrite !prod_cons, IH. Qed.

Lemma prod_filter {W} (p : W -> bool) (f : W -> nat) l :
  prod f (filter p l) * prod f (filter (fun w => negb (p w)) l) = prod f l.
Proof.
  induction l as [|w l IH]; [easy|]; simpl; destruct (p w); simpl; rewrite !prod_cons; lia.
Qed.

Lemma prod_permutation {W} (g : W -> nat) k k' : Permutation k k' -> prod g k = prod g k'.
Proof.
  induction 1 as [|a k k' _ IH|a b k|k1 k2 k3 _ IH _ IH']; rewrite ?prod_cons; try lia; easy.
Qed.
