(* Between the blocks of a partition, a protocol is a tree (../written/coding.md, "Between
   blocks").

   All inputs of a block but one are fixed; the block is one rank with that input.
   What passes inside a block is a function of its input and of what it has received,
   so it needs no node of the tree. *)

From Coq Require Import List Arith Bool Lia.
From optcc Require Import Model Protocols Entropy Coding Received.
Import ListNotations.
Open Scope nat_scope.

Section Merging.
Context {X V : Type}.
Variables (none : X) (z : list X) (P q : nat) (block : rank -> nat).
Hypothesis part : partitions P q block.

Notation own := (own none).
Notation post := (post none).
Notation contents := (contents none).
Notation message := (@message X V).

(* The rank of block b whose input is free; and the inputs of all ranks, given those of
   the blocks, if all others are as in z. *)
Definition free (b : nat) : rank :=
  match find (fun r => block r =? b) (seq 0 P) with Some r => r | None => 0 end.
Definition input (r : rank) (a : X) : X := if r =? free (block r) then a else own z r.
Definition expand (y : list X) : list X :=
  map (fun r => input r (own y (block r))) (seq 0 P).

Lemma free_in b : b < q -> free b < P /\ block (free b) = b.
Proof.
  intros Hb; destruct (proj2 part b Hb) as (r & Hr & E); unfold free.
  destruct (find _ _) as [r'|] eqn:F.
  - apply find_some in F; destruct F as [I F]; apply in_seq in I; apply Nat.eqb_eq in F; lia.
  - apply find_none with (x := r) in F; [|apply in_seq; lia].
    apply Nat.eqb_neq in F; lia.
Qed.

Lemma own_expand y r : r < P -> own (expand y) r = input r (own y (block r)).
Proof.
  intros Hr; unfold expand, Protocols.own.
  rewrite (nth_indep _ none (input 0 (own y (block 0)))) by (rewrite map_length, seq_length; lia).
  rewrite (map_nth (fun r => input r (own y (block r)))), seq_nth by lia; easy.
Qed.

Lemma expand_length y : length (expand y) = P.
Proof. unfold expand; now rewrite map_length, seq_length. Qed.

Lemma expand_choice A y : In z (choices A P) -> In y (choices A q) -> In (expand y) (choices A P).
Proof.
  intros Iz Iy; apply in_choices in Iy; apply in_choices; split; [apply expand_length|].
  intros a I; apply in_map_iff in I; destruct I as (r & <- & I); apply in_seq in I.
  apply in_choices in Iz; unfold input; destruct (r =? free (block r)).
  - apply Iy, nth_In; rewrite (proj1 Iy); apply part; lia.
  - apply Iz, nth_In; lia.
Qed.

(* Another input of a block is another input of its free rank. *)
Lemma expand_put b a y : b < q -> length y = q ->
  expand (put b a y) = put (free b) a (expand y).
Proof.
  intros Hb L; destruct (free_in b Hb) as [F E].
  apply (own_ext none); [now rewrite put_length, !expand_length|].
  intros r Hr; rewrite expand_length in Hr; rewrite own_expand by easy.
  destruct (Nat.eq_dec r (free b)) as [->|N].
  - rewrite own_put by now rewrite expand_length.
    unfold input; rewrite E, Nat.eqb_refl, own_put; [easy | lia].
  - rewrite (own_put_other none (free b)), own_expand by easy; unfold input.
    destruct (Nat.eqb_spec r (free (block r))) as [Er|]; [|easy].
    rewrite own_put_other; [easy | congruence].
Qed.

(* ------------------------------------------------------------------------ *)
(* The tree                                                                   *)

(* s r a: what rank r has received so far, if its block has input a. *)
Fixpoint tree_of (s : rank -> X -> list V) (p : list message) : tree X V :=
  match p with
  | [] => Stop
  | m :: p =>
      let what := fun a => says m (input (from m) a) (s (from m) a) in
      if block (from m) =? block (to m)
      then tree_of (fun r a => if r =? to m then s r a ++ [what a] else s r a) p
      else Say (block (from m)) (block (to m)) what
             (fun v => tree_of (fun r a => if r =? to m then s r a ++ [v] else s r a) p)
  end.

Lemma tree_between s p : (forall m, In m p -> from m < P /\ to m < P) ->
  between q (tree_of s p).
Proof.
  revert s; induction p as [|m p IH]; intros s I; simpl; [easy|].
  assert (I' : forall m, In m p -> from m < P /\ to m < P) by (intros; apply I; now right).
  destruct (Nat.eqb_spec (block (from m)) (block (to m))); [now apply IH|].
  destruct (I m (or_introl eq_refl)); simpl; repeat split; auto; now apply part.
Qed.

(* What enters block b, in order. *)
Definition entering (b : nat) (m : message) : bool :=
  (block (to m) =? b) && negb (block (from m) =? block (to m)).
Definition entered {C} (b : nat) (p : list message) (l : list C) : list C :=
  map snd (filter (fun mc => entering b (fst mc)) (combine p l)).

(* A block hears what enters it. *)
Lemma heard_entered b y p : (forall m, In m p -> from m < P /\ to m < P) ->
  forall s t, (forall r, r < P -> s r (own y (block r)) = t r) ->
  heard none b (tree_of s p) y = entered b p (contents (expand y) t p).
Proof.
  induction p as [|m p IH]; intros I s t M; [easy|].
  assert (I' : forall m, In m p -> from m < P /\ to m < P) by (intros; apply I; now right).
  destruct (I m (or_introl eq_refl)) as [Hf Ht].
  set (v := content none (expand y) t m).
  assert (Ev : says m (input (from m) (own y (block (from m))))
                      (s (from m) (own y (block (from m)))) = v).
  { unfold v, content; now rewrite own_expand, M. }
  assert (M' : forall (w : X -> V), w (own y (block (to m))) = v -> forall r, r < P ->
    (if r =? to m then s r (own y (block r)) ++ [w (own y (block r))] else s r (own y (block r)))
    = post (expand y) t m r).
  { intros w Ew r Hr; unfold Protocols.post; fold v; rewrite M by easy.
    destruct (Nat.eqb_spec r (to m)) as [->|]; [now rewrite Ew | easy]. }
  unfold entered, entering; simpl.
  destruct (Nat.eqb_spec (block (from m)) (block (to m))) as [E|N]; simpl.
  - rewrite andb_false_r; apply IH; [easy|].
    intros r Hr; apply (M' (fun a => says m (input (from m) a) (s (from m) a))); [|easy].
    now rewrite <- E.
  - rewrite andb_true_r, Ev, (Nat.eqb_sym b).
    assert (R := IH I' (fun r a => if r =? to m then s r a ++ [v] else s r a)
      (post (expand y) t m) (M' (fun _ => v) eq_refl)).
    destruct (block (to m) =? b); simpl; [f_equal|]; exact R.
Qed.

(* The views of a block's ranks are functions of its inputs and of what enters it. *)
Lemma entered_tells b x y p : (forall r, r < P -> block r = b -> own x r = own y r) ->
  (forall m, In m p -> from m < P /\ to m < P) ->
  forall s t, (forall r, r < P -> block r = b -> s r = t r) ->
  entered b p (contents x s p) = entered b p (contents y t p) ->
  forall r, r < P -> block r = b ->
    fold_left (post x) p s r = fold_left (post y) p t r.
Proof.
  intros O; induction p as [|m p IH]; intros I s t S E r Hr Er; simpl; [now apply S|].
  assert (I' : forall m, In m p -> from m < P /\ to m < P) by (intros; apply I; now right).
  destruct (I m (or_introl eq_refl)) as [Hf Ht].
  unfold entered, entering in E; simpl in E.
  assert (same : block (to m) = b -> content none x s m = content none y t m /\
    entered b p (contents x (post x s m) p) = entered b p (contents y (post y t m) p)).
  { intros Et; rewrite Et, Nat.eqb_refl in E; simpl in E.
    destruct (Nat.eqb_spec (block (from m)) b) as [Ef|]; simpl in E.
    - split; [|exact E]; unfold content; now rewrite O, S.
    - injection E as Ev E; now split. }
  apply IH; auto.
  - intros i Hi Ei; unfold Protocols.post.
    destruct (Nat.eqb_spec i (to m)) as [->|]; [|now apply S].
    destruct (same Ei) as [-> _]; now rewrite S.
  - destruct (Nat.eqb_spec (block (to m)) b) as [Et|]; [now apply same | exact E].
Qed.

Definition merged (p : list message) : tree X V := tree_of (fun _ _ => []) p.

(* What is asked of trees in Coding.v holds of this one. *)
Context {Y : Type}.
Variables (f : list X -> Y) (A : list X) (p : list message).
Hypothesis solvable : forall x k a, length x = P -> k < P ->
  f (put k a x) = f x -> a = own x k.
Hypothesis z_in : In z (choices A P).
Hypothesis good : computes none P (choices A P) f p.

Lemma merged_solvable y b a : length y = q -> b < q ->
  f (expand (put b a y)) = f (expand y) -> a = own y b.
Proof.
  intros L Hb E; rewrite expand_put in E by easy; destruct (free_in b Hb) as [F B].
  apply solvable in E; [|apply expand_length | easy].
  rewrite own_expand in E by easy; unfold input in E; now rewrite B, Nat.eqb_refl in E.
Qed.

Lemma merged_between : between q (merged p).
Proof. apply tree_between, good. Qed.

Lemma merged_view b y :
  view none b (merged p) y = (own y b, entered b p (said none (expand y) p)).
Proof.
  unfold view, pair; f_equal; now apply heard_entered; [apply good|].
Qed.

Lemma merged_know : all_know none q (fun y => f (expand y)) (merged p) (choices A q).
Proof.
  intros b Hb x y Ix Iy; rewrite !merged_view; intros [= Eo Ee].
  destruct (free_in b Hb) as [F B], (proj2 good (free b) F) as (out & O).
  rewrite <- !O by now apply expand_choice.
  rewrite !own_expand, B, Eo by easy; f_equal.
  apply (entered_tells b); auto; [|apply good].
  intros r Hr Er; now rewrite !own_expand, Er, Eo.
Qed.
End Merging.
