(* Messages of varying length between blocks, on average over all inputs.

   For fixed inputs of all ranks but one in each block the blocks are the ranks of a
   tree (Merging.v).  All ways to fix them together are all inputs, each as often. *)

From Coq Require Import List Arith Bool Lia Permutation.
From optcc Require Import Model Blocks Protocols Products Coding Received Merging Alphabets Lengths.
Import ListNotations.
Open Scope nat_scope.

Section BlockLengths.
Context {X Y : Type} `{Eq X} `{Eq Y}.
Variables (none : X) (P q : nat) (block : rank -> nat) (f : list X -> Y) (A : list X).
Hypothesis Hq : 2 <= q.
Hypothesis part : partitions P q block.
Hypothesis solvable : forall x k a, length x = P -> k < P ->
  f (put k a x) = f x -> a = own none x k.
Hypothesis A_once : NoDup A.
Hypothesis A_some : 0 < length A.
Variable p : @protocol X bits.
Hypothesis good : computes none P (choices A P) f p.
Hypothesis free_of_prefixes : prefix_free none (choices A P) p.

Notation expand z y := (expand none z P block y).
Notation sent := (bits_passing none block p).

Lemma fixed_average z : In z (choices A P) ->
  length A ^ (2 * (q - 1) * length A ^ q)
  <= 2 ^ list_sum (map (fun y => sent (expand z y)) (choices A q)).
Proof.
  intros Iz.
  assert (heard : forall b y, Protocols.heard none b (merged none z P block p) y
                              = entered block b p (said none (expand z y) p)).
  { intros b y; apply heard_entered; [apply good | easy]. }
  assert (B := tree_average none q (fun y => f (expand z y)) A Hq
    (merged_solvable none z P q block part f solvable) A_once A_some (merged none z P block p)
    (merged_between none z P q block part f A p good)
    (merged_know none z P q block part f A p Iz good)).
  eapply Nat.le_trans; [apply B; clear B|].
  - intros b x y Hb Ix Iy O; rewrite !heard.
    apply (streams_end none P f A p good free_of_prefixes block b _ _
      (expand_choice none z P q block part A x Iz Ix)
      (expand_choice none z P q block part A y Iz Iy)) with (before := []); auto.
    intros r Hr Er; now rewrite !own_expand, Er, O.
  - rewrite <- !prod_two; apply prod_le; intros y Iy; unfold tree_bits, bits_passing.
    rewrite <- prod_two, <- two_concat, prod_map.
    rewrite <- (prod_entered (fun c : bits => 2 ^ length c) q block)
      by (intros m I; apply part, (proj1 good m I)).
    apply Nat.eq_le_incl, prod_ext; intros b _; rewrite heard; symmetry; apply two_concat.
Qed.

(* Fixed inputs z and free ones y against all inputs x and the ones they replace. *)
Definition replaced (z : list X) : list X := map (fun b => own none z (free P block b)) (seq 0 q).
Definition exchange (zy : list X * list X) : list X * list X :=
  (expand (fst zy) (snd zy), replaced (fst zy)).

Lemma own_replaced z b : b < q -> own none (replaced z) b = own none z (free P block b).
Proof.
  intros Hb; unfold replaced, own.
  rewrite (nth_indep _ none (nth (free P block 0) z none)) by (rewrite map_length, seq_length; lia).
  rewrite (map_nth (fun b => nth (free P block b) z none)), seq_nth by lia; easy.
Qed.

Lemma exchange_twice z y : length z = P -> length y = q -> exchange (exchange (z, y)) = (z, y).
Proof.
  intros Lz Ly; unfold exchange; simpl; f_equal; apply (own_ext none).
  - now rewrite expand_length.
  - intros r Hr; rewrite expand_length in Hr; rewrite own_expand by easy; unfold input.
    assert (Hb : block r < q) by now apply part.
    destruct (Nat.eqb_spec r (free P block (block r))) as [E|N].
    + now rewrite own_replaced, <- E by easy.
    + rewrite own_expand by easy; unfold input.
      now rewrite (proj2 (Nat.eqb_neq _ _) N).
  - unfold replaced; rewrite map_length, seq_length; lia.
  - intros b Hb; unfold replaced in Hb; rewrite map_length, seq_length in Hb.
    destruct (free_in P q block part b Hb) as [F E].
    rewrite own_replaced, own_expand by easy; unfold input; now rewrite E, Nat.eqb_refl.
Qed.

Notation pairs := (list_prod (choices A P) (choices A q)).

Lemma exchange_inputs : Permutation (map exchange pairs) pairs.
Proof.
  assert (N : NoDup pairs) by (apply list_prod_once; now apply choices_once).
  apply NoDup_Permutation_bis.
  - apply NoDup_map; [|easy]; intros [z y] [z' y'] I I' E.
    apply in_prod_iff in I; apply in_prod_iff in I'.
    rewrite <- (exchange_twice z y), <- (exchange_twice z' y')
      by (eapply choices_ranks; apply I || apply I').
    now rewrite E.
  - now rewrite map_length.
  - intros u I; apply in_map_iff in I; destruct I as ([z y] & <- & I); apply in_prod_iff in I.
    destruct I as [Iz Iy]; apply in_prod; simpl; [now apply (expand_choice none z P q block part)|].
    apply in_choices; split; [unfold replaced; now rewrite map_length, seq_length|].
    intros a I; apply in_map_iff in I; destruct I as (b & <- & I); apply in_seq in I.
    apply in_choices in Iz; apply Iz, nth_In; rewrite (proj1 Iz).
    apply (free_in P q block part); lia.
Qed.

Lemma prod_pairs {W W'} (g : W -> W' -> nat) k k' :
  prod (fun w => prod (g w) k') k = prod (fun ww => g (fst ww) (snd ww)) (list_prod k k').
Proof.
  induction k as [|w k IH]; [easy|]; simpl; now rewrite prod_cons, prod_app, prod_map, IH.
Qed.

Theorem block_average :
  length A ^ (2 * (q - 1) * length A ^ P) <= 2 ^ list_sum (map sent (choices A P)).
Proof.
  apply (Nat.pow_le_mono_l_iff _ _ (length A ^ q)); [apply Nat.pow_nonzero; lia|].
  set (h := fun x => 2 ^ sent x).
  assert (all : prod (fun z => prod (fun y => h (expand z y)) (choices A q)) (choices A P)
                = prod h (choices A P) ^ (length A ^ q)).
  { rewrite prod_pairs.
    transitivity (prod (fun zy => h (fst zy)) (map exchange pairs)); [now rewrite prod_map|].
    rewrite (prod_permutation _ _ _ exchange_inputs), <- (prod_pairs (fun x _ => h x)).
    rewrite <- prod_pow; apply prod_ext; intros x _; now rewrite prod_const, choices_length. }
  rewrite <- prod_two; fold h; rewrite <- all, <- Nat.pow_mul_r.
  replace (2 * (q - 1) * length A ^ P * length A ^ q)
    with (2 * (q - 1) * length A ^ q * length A ^ P) by ring.
  rewrite Nat.pow_mul_r, <- (choices_length A P), <- prod_const.
  apply prod_le; intros z Iz; unfold h; rewrite prod_two; now apply fixed_average.
Qed.
End BlockLengths.

(* Every rank a block. *)
Theorem average {X Y} `{Eq X} `{Eq Y} (none : X) P (f : list X -> Y) A (p : @protocol X bits) :
  2 <= P ->
  (forall x k a, length x = P -> k < P -> f (put k a x) = f x -> a = own none x k) ->
  NoDup A -> 0 < length A -> computes none P (choices A P) f p ->
  prefix_free none (choices A P) p ->
  length A ^ (2 * (P - 1) * length A ^ P) <= 2 ^ list_sum (map (bits_sent none p) (choices A P)).
Proof.
  intros HP solvable A_once A_some good free.
  assert (B := block_average none P P (fun r => r) f A HP (singletons P) solvable A_once A_some
    p good free).
  eapply Nat.le_trans; [exact B|].
  rewrite <- !prod_two; apply prod_le; intros x _; unfold bits_passing, bits_sent.
  rewrite <- !two_concat, prod_map.
  apply (prod_passing (fun c : bits => 2 ^ length c)); intros; apply two_pos.
Qed.
