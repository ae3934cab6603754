(* Groups of n bits: vectors over a group, part by part. *)

From Coq Require Import List Arith Bool Lia.
From optcc Require Import Model Protocols Received.
Import ListNotations.
Open Scope nat_scope.

Definition bit : group.
Proof.
  refine (Group bool Eq_bool xorb false (fun a => a) _ _ _ _ [false; true] _ _).
  1-4: repeat intros []; reflexivity.
  - intros []; simpl; auto.
  - repeat constructor; simpl; intuition discriminate.
Defined.

Definition trivial : group.
Proof.
  refine (Group unit _ (fun _ _ => tt) tt (fun _ => tt) _ _ _ _ [tt] _ _).
  - intros [] []; now left.
  - easy.
  - easy.
  - now intros [].
  - easy.
  - intros []; simpl; auto.
  - repeat constructor; simpl; easy.
Defined.

Definition product (A B : group) : group.
Proof.
  refine (Group (carrier A * carrier B) Eq_prod
    (fun x y => (add A (fst x) (fst y), add B (snd x) (snd y))) (zero A, zero B)
    (fun x => (neg A (fst x), neg B (snd x))) _ _ _ _ (list_prod (elements A) (elements B)) _ _).
  - intros; simpl; now rewrite !add_assoc.
  - intros; now rewrite (add_comm A), (add_comm B).
  - intros []; simpl; now rewrite !add_zero.
  - intros []; simpl; now rewrite !add_neg.
  - intros []; apply in_prod; apply each.
  - apply list_prod_once; apply once.
Defined.

Fixpoint power (A : group) (n : nat) : group :=
  match n with 0 => trivial | S n => product A (power A n) end.

Lemma power_order A n : order (power A n) = order A ^ n.
Proof.
  induction n as [|n IH]; [easy|]; simpl; rewrite <- IH; unfold order; simpl; apply prod_length.
Qed.

Section Parts.
Variable A : group.

Fixpoint part (n e : nat) : carrier (power A n) -> carrier A :=
  match n with
  | 0 => fun _ => zero A
  | S n => fun x => match e with 0 => fst x | S e => part n e (snd x) end
  end.

Fixpoint build (n : nat) (g : nat -> carrier A) : carrier (power A n) :=
  match n with 0 => tt | S n => (g 0, build n (fun e => g (S e))) end.

Lemma build_parts n : forall g x, (forall e, e < n -> g e = part n e x) -> build n g = x.
Proof.
  induction n as [|n IH]; intros g x E; [now destruct x|].
  destruct x as [a x]; simpl; f_equal; [apply (E 0); lia|].
  apply IH; intros e He; apply (E (S e)); lia.
Qed.

Lemma part_sum n : forall e x, part n e (sum (power A n) x) = sum A (map (part n e) x).
Proof.
  induction n as [|n IH]; intros e x.
  - induction x as [|a x IHx]; [easy|]; simpl in *; rewrite <- IHx; symmetry; apply add_zero.
  - destruct e as [|e].
    + induction x as [|a x IHx]; [easy|].
      exact (f_equal (add A (fst a)) IHx).
    + assert (E : snd (sum (power A (S n)) x) = sum (power A n) (map snd x)).
      { induction x as [|a x IHx]; [easy|].
        exact (f_equal (add (power A n) (snd a)) IHx). }
      change (part n e (snd (sum (power A (S n)) x)) = sum A (map (fun y => part n e (snd y)) x)).
      rewrite E, IH, map_map; easy.
Qed.
End Parts.
