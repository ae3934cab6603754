(* What "exactly once" means: it is the sum in every abelian group, it is more than
   to reach everybody, and it is more than the sets of contributors see. *)

From Coq Require Import List Arith Bool Lia.
From optcc Require Import Model.
Import ListNotations.
Open Scope nat_scope.

Lemma result_app {A} (add : A -> A -> A) s1 s2 V :
  result add (s1 ++ s2) V = result add s2 (result add s1 V).
Proof. apply fold_left_app. Qed.

(* ------------------------------------------------------------------------ *)
(* Stronger than sets of contributors                                         *)

(* What is held once or more is known. *)
Lemma held_known s e r c : times_held s e r c <> 0 -> final s e r c = true.
Proof.
  revert r; induction s as [|t s IH] using rev_ind; intros r H.
  - unfold times_held, one_at in H; simpl in H; unfold final, initial; simpl.
    now destruct (r =? c).
  - unfold times_held in *; rewrite result_app in H; simpl in H; unfold deliver in H.
    unfold final in *; rewrite fold_left_app; simpl; unfold step at 1.
    apply orb_true_iff.
    destruct ((e =? elt t) && (r =? dst t)); simpl; [|auto].
    destruct (Nat.eq_dec (result plus s (one_at c) e (src t)) 0) as [E|E]; [|auto].
    destruct (adds t); [left; apply IH; lia | easy].
Qed.

Theorem exactly_once_is_allreduce P n s : exactly_once P n s -> is_allreduce P n s.
Proof.
  intros [inside once]; split; [exact inside|]; intros e r c He Hr Hc.
  apply held_known; rewrite once; auto.
Qed.

Theorem double_count_is_allreduce a b c d e : is_allreduce 3 1 (double_count a b c d e).
Proof.
  split.
  - intros t I; repeat (destruct I as [<-|I]; [simpl; lia|]); easy.
  - intros el r k He Hr Hk; replace el with 0 by lia.
    destruct r as [|[|[|]]], k as [|[|[|]]]; easy || lia.
Qed.

Theorem double_count_is_refused a b c d e : ~ exactly_once 3 1 (double_count a b c d e).
Proof.
  intros [_ once].
  assert (H := fun k => once 0 2 k ltac:(lia) ltac:(lia)).
  generalize (H 0 ltac:(lia)) (H 1 ltac:(lia)) (H 2 ltac:(lia)).
  now destruct a, b, c.
Qed.

(* ------------------------------------------------------------------------ *)
(* The sum in every abelian group                                             *)

Section Sums.
Context {A : Type} (add : A -> A -> A) (zero : A).
Hypothesis laws : commutative_monoid add zero.

Let assoc := proj1 laws.
Let comm := proj1 (proj2 laws).
Let zero_l := proj2 (proj2 laws).

Fixpoint times (k : nat) (x : A) : A :=
  match k with 0 => zero | S k => add x (times k x) end.

Lemma times_plus j k x : times (j + k) x = add (times j x) (times k x).
Proof. induction j as [|j IH]; simpl; [now rewrite zero_l | now rewrite IH, assoc]. Qed.

Lemma sum_S P f : sum_of add zero (S P) f = add (sum_of add zero P f) (f P).
Proof.
  assert (G : forall l y, fold_right add zero (l ++ [y]) = add (fold_right add zero l) y).
  { intros l y; induction l as [|z l IH]; simpl; [apply comm | now rewrite IH, assoc]. }
  unfold sum_of; rewrite seq_S, map_app; apply G.
Qed.

Lemma sum_ext P f g : (forall c, c < P -> f c = g c) -> sum_of add zero P f = sum_of add zero P g.
Proof.
  intros H; unfold sum_of; f_equal; apply map_ext_in; intros c I; apply H.
  apply in_seq in I; lia.
Qed.

Lemma sum_add P f g :
  add (sum_of add zero P f) (sum_of add zero P g) = sum_of add zero P (fun c => add (f c) (g c)).
Proof.
  induction P as [|P IH]; [apply zero_l|]; rewrite !sum_S, <- IH, !assoc; f_equal.
  now rewrite <- !assoc, (comm (f P)).
Qed.

Lemma sum_own P r x : sum_of add zero P (fun c => times (one_at c 0 r) (x c))
  = if r <? P then x r else zero.
Proof.
  induction P as [|P IH]; [reflexivity|]; rewrite sum_S, IH; unfold one_at.
  destruct (Nat.ltb_spec r P), (Nat.ltb_spec r (S P)), (Nat.eqb_spec r P); try lia;
    subst; simpl; rewrite ?zero_l, ?(comm _ zero), ?zero_l; reflexivity.
Qed.

(* A rank holds every contribution as often as the count says. *)
Lemma result_counts P s (x : values A) e r :
  among P s -> r < P ->
  result add s x e r = sum_of add zero P (fun c => times (times_held s e r c) (x e c)).
Proof.
  revert r; induction s as [|t s IH] using rev_ind; intros r inside Hr.
  - unfold times_held; simpl; change (one_at ?c e r) with (one_at c 0 r).
    now rewrite sum_own, (proj2 (Nat.ltb_lt _ _) Hr).
  - assert (inside' : among P s) by (intros t' I; apply inside, in_app_iff; auto).
    assert (Hs : src t < P) by (apply (inside t), in_app_iff; simpl; auto).
    unfold times_held in *; rewrite result_app; simpl; unfold deliver.
    rewrite (IH r inside' Hr), (IH (src t) inside' Hs).
    destruct ((e =? elt t) && (r =? dst t)) eqn:E, (adds t) eqn:D; try rewrite sum_add;
      apply sum_ext; intros c _; rewrite result_app; simpl; unfold deliver;
      rewrite E, ?D; auto; now rewrite times_plus.
Qed.

Theorem exactly_once_sums P n s (x : values A) e r :
  exactly_once P n s -> e < n -> r < P -> result add s x e r = sum_of add zero P (x e).
Proof.
  intros [inside once] He Hr; rewrite (result_counts P) by easy; apply sum_ext.
  intros c Hc; rewrite once by easy; simpl; now rewrite comm, zero_l.
Qed.
End Sums.
