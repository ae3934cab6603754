(* Messages from alphabets of given sizes: the product of the sizes is at least
   |A| ^ (2(q-1)) between q blocks; and of what enters one of two blocks, at least |A|. *)

From Coq Require Import List Arith Bool QArith Lia Lqa.
From optcc Require Import Model Protocols Rational Products Means Entropy Coding Received Merging.
Import ListNotations.
Open Scope nat_scope.

(* All lists with one element from each. *)
Fixpoint picks {V} (ls : list (list V)) : list (list V) :=
  match ls with
  | [] => [[]]
  | l :: ls => flat_map (fun v => map (cons v) (picks ls)) l
  end.

Lemma picks_length {V} (ls : list (list V)) : length (picks ls) = prod (@length V) ls.
Proof.
  induction ls as [|l ls IH]; [easy|]; rewrite prod_cons, <- IH; simpl.
  generalize (picks ls) as k; intros k; clear; induction l as [|v l IH]; simpl; [easy|].
  now rewrite app_length, map_length, IH.
Qed.

Lemma in_picks {V} (vs : list V) ls : Forall2 (@In V) vs ls -> In vs (picks ls).
Proof.
  induction 1 as [|v l vs ls I F IH]; simpl; [now left|].
  apply in_flat_map; exists v; split; [easy | now apply in_map].
Qed.

Lemma Forall2_entered {X V C} (R : V -> C -> Prop) block b (p : list (@message X V)) vs cs :
  Forall2 R vs cs -> Forall2 R (entered block b p vs) (entered block b p cs).
Proof.
  intros F; revert p; induction F as [|v c vs cs r F IH]; intros [|m p]; try constructor.
  unfold entered; simpl; destruct (entering block b m); simpl; [constructor; [easy|]|]; apply IH.
Qed.

(* Each message between blocks enters one of them. *)
Lemma prod_entered {X V C} (g : C -> nat) q block (p : list (@message X V)) cs :
  (forall m, In m p -> block (to m) < q) ->
  prod (fun b => prod g (entered block b p cs)) (seq 0 q)
  = prod (fun mc => g (snd mc)) (filter (fun mc => passes block (fst mc)) (combine p cs)).
Proof.
  assert (none : prod (fun _ : nat => 1) (seq 0 q) = 1) by now rewrite prod_const, Nat.pow_1_l.
  revert cs; induction p as [|m p IH]; intros cs I; [exact none|].
  destruct cs as [|c cs]; [exact none|].
  simpl; unfold entered, entering, passes in *; simpl.
  specialize (IH cs (fun m' I' => I m' (or_intror I'))); unfold entered, entering in IH.
  destruct (block (from m) =? block (to m)); simpl.
  - rewrite <- IH; apply prod_ext; intros b _; now rewrite andb_false_r.
  - rewrite prod_cons; simpl; rewrite <- IH.
    assert (one : forall n, prod (fun b => if block (to m) =? b then g c else 1) (seq 0 n)
                            = if block (to m) <? n then g c else 1).
    { induction n as [|n IHn]; [easy|].
      rewrite seq_S, prod_app, IHn; simpl; rewrite prod_cons; change (prod _ []) with 1.
      destruct (Nat.ltb_spec (block (to m)) n), (Nat.ltb_spec (block (to m)) (S n)),
        (Nat.eqb_spec (block (to m)) n); lia. }
    specialize (one q); rewrite (proj2 (Nat.ltb_lt _ _) (I m (or_introl eq_refl))) in one.
    rewrite <- one, <- prod_mul; apply prod_ext; intros b _; rewrite andb_true_r.
    destruct (block (to m) =? b); simpl; [rewrite prod_cons|]; lia.
Qed.

Lemma prod_passing {X V C} (g : C -> nat) block (p : list (@message X V)) cs :
  (forall c, In c cs -> 0 < g c) ->
  prod (fun mc => g (snd mc)) (filter (fun mc => passes block (fst mc)) (combine p cs))
  <= prod g cs.
Proof.
  revert cs; induction p as [|m p IH]; intros cs pos; [now apply prod_pos|].
  destruct cs as [|c cs]; [easy|]; simpl; rewrite prod_cons.
  assert (R := IH cs (fun c' I => pos c' (or_intror I))).
  destruct (passes block m); simpl; [rewrite prod_cons; simpl; now apply Nat.mul_le_mono_l|].
  assert (0 < g c) by (apply pos; now left); nia.
Qed.

Section Alphabets.
Context {X V Y : Type} `{Eq X} `{Eq V} `{Eq Y}.
Variables (none : X) (P q : nat) (block : rank -> nat) (f : list X -> Y) (A : list X).
Hypothesis Hq : 2 <= q.
Hypothesis part : partitions P q block.
Hypothesis solvable : forall x k a, length x = P -> k < P ->
  f (put k a x) = f x -> a = own none x k.
Hypothesis A_once : NoDup A.
Hypothesis A_some : 0 < length A.
Variables (p : list (@message X V)) (alphabets : list (list V)).
Hypothesis good : computes none P (choices A P) f p.
Hypothesis speaks : in_alphabets none (choices A P) p alphabets.

Let size (b : nat) : nat := prod (@length V) (entered block b p alphabets).

(* What enters a block is one of so many. *)
Lemma in_size z b y : In z (choices A P) -> In y (choices A q) ->
  In (entered block b p (said none (expand none z P block y) p))
     (picks (entered block b p alphabets)).
Proof.
  intros Iz Iy; apply in_picks, Forall2_entered, speaks.
  now apply (expand_choice none z P q block part).
Qed.

Lemma size_pos b : 0 < size b.
Proof.
  destruct (some_choice A P A_some) as [z Iz]; unfold size; rewrite <- picks_length.
  destruct (some_choice A q A_some) as [y Iy].
  assert (I := in_size z b y Iz Iy); destruct (picks _); simpl; [easy | lia].
Qed.

Lemma alphabets_kraft z b : In z (choices A P) -> b < q ->
  (total (fun _ => 1 / Qnat (size b))
         (different (view none b (merged none z P block p)) (choices A q))
   <= Qnat (length A))%Q.
Proof.
  intros Iz Hb; assert (S : (0 < Qnat (size b))%Q) by apply Qnat_pos, size_pos.
  set (vs := different _ _); rewrite total_const.
  assert (L : length vs <= length A * size b).
  { unfold size; rewrite <- picks_length, <- prod_length; apply NoDup_incl_length.
    - apply NoDup_nodup.
    - intros u I; apply in_different in I; destruct I as (y & I & <-).
      rewrite merged_view with (Y := Y) (f := f) (A := A) by easy.
      apply in_prod; [|now apply in_size].
      apply in_choices in I; apply I, nth_In; lia. }
  apply Qnat_le in L; rewrite Qnat_mult in L.
  setoid_replace (Qnat (length vs) * (1 / Qnat (size b)))%Q
    with (Qnat (length vs) / Qnat (size b))%Q by (field; lra).
  now apply Qdiv_le.
Qed.

Theorem alphabets_between_blocks :
  length A ^ (2 * (q - 1))
  <= prod (fun ma => length (snd ma))
          (filter (fun ma => passes block (fst ma)) (combine p alphabets)).
Proof.
  destruct (some_choice A P A_some) as [z Iz].
  assert (B := received_bound (V := V) none q (fun y => f (expand none z P block y)) A Hq).
  specialize (B (merged_solvable none z P q block part f solvable)).
  specialize (B A_once A_some (merged none z P block p)).
  specialize (B (merged_between none z P q block part f A p good)).
  specialize (B (merged_know none z P q block part f A p Iz good)).
  specialize (B (fun b _ => size b) (fun b _ => size_pos b)
    (fun b Hb => alphabets_kraft z b Iz Hb)).
  rewrite (prod_ext _ (fun b => size b ^ (length A ^ q))) in B
    by (intros; now rewrite prod_const, choices_length).
  rewrite prod_pow, Nat.pow_mul_r in B; apply Nat.pow_le_mono_l_iff in B.
  - rewrite <- (prod_entered _ q); [exact B|].
    intros m I; apply part, (proj1 good m I).
  - apply Nat.pow_nonzero; lia.
Qed.

(* Two blocks: what enters each of them. *)
Theorem alphabets_into_block b : q = 2 -> b < q ->
  length A <= prod (@length V) (entered block b p alphabets).
Proof.
  intros E Hb; destruct (some_choice A P A_some) as [z Iz].
  assert (B := received_by_each (V := V) none q (fun y => f (expand none z P block y)) A Hq).
  specialize (B (merged_solvable none z P q block part f solvable)).
  specialize (B A_once A_some (merged none z P block p)).
  specialize (B (merged_between none z P q block part f A p good)).
  specialize (B (merged_know none z P q block part f A p Iz good)).
  specialize (B (fun b _ => size b) (fun b _ => size_pos b)
    (fun b Hb => alphabets_kraft z b Iz Hb)).
  specialize (B b E Hb); cbv beta in B; rewrite prod_const, choices_length in B.
  apply Nat.pow_le_mono_l_iff in B; [exact B | apply Nat.pow_nonzero; lia].
Qed.
End Alphabets.
