(* Counting transfers in a list. *)

From Coq Require Import List Arith Bool Lia.
From optcc Require Import Model.
Import ListNotations.
Open Scope nat_scope.

Lemma count_app p s1 s2 : count p (s1 ++ s2) = count p s1 + count p s2.
Proof. unfold count. now rewrite filter_app, app_length. Qed.

Lemma count_le p p' s :
  (forall t, p t = true -> p' t = true) -> count p s <= count p' s.
Proof.
  intros H; unfold count; induction s as [|t s IH]; simpl; [lia|].
  destruct (p t) eqn:E; [rewrite (H t E); simpl; lia|].
  destruct (p' t); simpl; lia.
Qed.

Lemma count_length p s : count p s <= length s.
Proof.
  unfold count; induction s as [|t s IH]; simpl; [lia|].
  destruct (p t); simpl; lia.
Qed.

Lemma count_map p (g : transfer -> transfer) s :
  count p (map g s) = count (fun t => p (g t)) s.
Proof.
  unfold count; induction s as [|t s IH]; simpl; [easy|].
  destruct (p (g t)); simpl; now rewrite IH.
Qed.

(* Distinct labels need distinct transfers. *)
Lemma count_labels (p : transfer -> bool) (label : transfer -> nat) X s :
  NoDup X ->
  (forall x, In x X -> exists t, In t s /\ p t = true /\ label t = x) ->
  length X <= count p s.
Proof.
  intros ND H; unfold count.
  rewrite <- (map_length label (filter p s)).
  apply NoDup_incl_length; [exact ND|].
  intros x Hx; destruct (H x Hx) as (t & Ht & Hp & <-).
  apply in_map, filter_In; auto.
Qed.

(* A bound per element adds up over the n elements. *)
Lemma count_elements p k n s :
  (forall e, e < n -> k <= count (fun t => of_element e t && p t) s) ->
  k * n <= count p s.
Proof.
  intros H.
  assert (G : forall m, m <= n -> k * m <= count (fun t => (elt t <? m) && p t) s).
  { induction m as [|m IH]; intros Hm; [lia|].
    specialize (IH ltac:(lia)); specialize (H m ltac:(lia)).
    enough (count (fun t => (elt t <? S m) && p t) s =
            count (fun t => (elt t <? m) && p t) s +
            count (fun t => of_element m t && p t) s) by nia.
    clear; unfold count, of_element; induction s as [|t s IH]; simpl; [easy|].
    destruct (Nat.ltb_spec (elt t) (S m)), (Nat.ltb_spec (elt t) m),
      (Nat.eqb_spec (elt t) m); try lia; destruct (p t); simpl; lia. }
  specialize (G n (le_n n)).
  enough (count (fun t => (elt t <? n) && p t) s <= count p s) by lia.
  apply count_le; intros t E; now apply andb_true_iff in E.
Qed.

Lemma count_one p e s :
  (exists t, In t s /\ elt t = e /\ p t = true) ->
  1 <= count (fun t => of_element e t && p t) s.
Proof.
  intros (t & I & <- & Hp).
  apply (count_labels _ elt [elt t]); [repeat constructor; simpl; tauto|].
  intros x [<-|[]]; exists t; unfold of_element; now rewrite Nat.eqb_refl.
Qed.
