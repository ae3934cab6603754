(* The entropies of the messages between blocks sum to at least 2(q-1) n: step 5 of
   ../written/coding.md, for fixed inputs of all ranks but one in each block, and then for
   all of them together. *)

From Coq Require Import List Arith Bool QArith Lia Permutation.
From optcc Require Import Model Blocks Protocols Rational Products Means Entropy Given Coding
  Received Merging Alphabets BlockLengths.
Import ListNotations.
Open Scope nat_scope.

(* What enters a rank, by the numbers of the messages. *)
Lemma entered_numbers {X V} block b (p : list (@message X V)) (l : list V) :
  length l = length p ->
  map Some (entered block b p l)
  = map (fun t => nth_error l t) (entered block b p (seq 0 (length p))).
Proof.
  intros L; change l with ([] ++ l) at 2; change 0 with (length (@nil V)) at 1.
  generalize (@nil V) as pre; revert l L; induction p as [|m p IH]; intros [|v l] L pre; try easy.
  injection L as L; unfold entered in *; simpl.
  assert (E := IH l L (pre ++ [v])).
  rewrite app_length, <- app_assoc, Nat.add_1_r in E; simpl in E.
  destruct (entering block b m); simpl; [|exact E]; f_equal; [|exact E].
  rewrite nth_error_app2, Nat.sub_diag by lia; easy.
Qed.

Lemma contents_length {X V} (none : X) x (p : list (@message X V)) s :
  length (contents none x s p) = length p.
Proof. revert s; induction p as [|m p IH]; intros s; simpl; auto. Qed.

Lemma combine_numbers {M} (p : list M) : map snd (combine p (seq 0 (length p))) = seq 0 (length p).
Proof.
  generalize 0 as k; induction p as [|m p IH]; intros k; simpl; [easy | now rewrite IH].
Qed.

Lemma split_square P M : 2 <= P -> (P - 1) * M * (P - 2) + 2 * (P - 1) * M = (P - 1) * M * P.
Proof. intros H; replace P with (P - 2 + 2) at 5 by lia; ring. Qed.

(* A rank's own input: H(inputs | input) >= (q-1) n. *)
Lemma own_lacks {X} `{Eq X} (none : X) A q r : NoDup A -> 0 < length A -> r < q ->
  length A ^ ((q - 1) * length A ^ q) <= ignorance (fun x => own none x r) (choices A q).
Proof.
  intros A_once A_some Hr.
  assert (S := source_coding (fun x => own none x r) (fun _ => 1) (length A) (choices A q)).
  rewrite !choices_length, prod_const, Nat.pow_1_l, Nat.mul_1_r, <- Nat.pow_mul_r in S.
  set (N := length A ^ q) in *.
  replace (q * N) with ((q - 1) * N + N) in S by (destruct q; lia).
  rewrite Nat.pow_add_r in S.
  apply (Nat.mul_le_mono_pos_r _ _ (length A ^ N)); [apply Nat.neq_0_lt_0, Nat.pow_nonzero; lia|].
  apply S; [lia|]; rewrite total_const, Qmult_1_r.
  apply Qnat_le, NoDup_incl_length; [apply NoDup_nodup|].
  intros a I; apply in_different in I; destruct I as (x & I & <-).
  apply in_choices in I; apply I, nth_In; lia.
Qed.

Lemma ignorance_permutation {W U} `{Eq U} (f : W -> U) k k' :
  Permutation k k' -> ignorance f k = ignorance f k'.
Proof.
  intros E; unfold ignorance; rewrite (prod_permutation _ _ _ E); apply prod_ext; intros w _.
  rewrite !alike_def; unfold having; induction E as [|a k k' _ IH|a b k|k1 k2 k3 _ IH _ IH'];
    simpl; [easy | | |congruence].
  - destruct (same (f a) (f w)); simpl; now rewrite IH.
  - now destruct (same (f a) (f w)), (same (f b) (f w)).
Qed.

(* A second, independent component that f does not look at. *)
Lemma ignorance_fst {W W' U} `{Eq U} (f : W -> U) (k : list W) (k' : list W') :
  ignorance (fun ww => f (fst ww)) (list_prod k k')
  = (length k' ^ length k') ^ length k * ignorance f k ^ length k'.
Proof.
  assert (E : forall w w', alike (fun ww => f (fst ww)) (list_prod k k') (w, w')
                           = alike f k w * length k').
  { intros w w'; rewrite !alike_def; unfold having; simpl.
    induction k as [|v k IH]; [easy|]; simpl; rewrite filter_app, app_length, IH.
    assert (one : length (filter (fun ww => same (f (fst ww)) (f w)) (map (fun y => (v, y)) k'))
                  = if same (f v) (f w) then length k' else 0).
    { clear IH; induction k' as [|y k' IHk]; simpl; destruct (same (f v) (f w)); simpl; lia. }
    rewrite one; destruct (same (f v) (f w)); simpl; lia. }
  unfold ignorance.
  transitivity (prod (fun ww => alike f k (fst ww) * length k') (list_prod k k')).
  - apply prod_ext; intros [w w'] _; apply E.
  - rewrite <- (prod_pairs (fun w _ => alike f k w * length k')).
    rewrite (prod_ext _ (fun w => alike f k w ^ length k' * length k' ^ length k'))
      by (intros; now rewrite prod_const, Nat.pow_mul_l).
    rewrite prod_mul, prod_pow, prod_const; lia.
Qed.

Section Entropies.
Context {X V Y : Type} `{Eq X} `{Eq V} `{Eq Y}.
Variables (none : X) (P q : nat) (block : rank -> nat) (f : list X -> Y) (A : list X).
Hypothesis Hq : 2 <= q.
Hypothesis part : partitions P q block.
Hypothesis solvable : forall x k a, length x = P -> k < P ->
  f (put k a x) = f x -> a = own none x k.
Hypothesis A_once : NoDup A.
Hypothesis A_some : 0 < length A.
Variable p : @protocol X V.
Hypothesis good : computes none P (choices A P) f p.

Notation N := (length A ^ q).
Notation M := (length A ^ P).
Notation numbers := (seq 0 (length p)).
Notation expand z y := (expand none z P block y).
Notation spoken z t := (fun y => message_at none p t (expand z y)).

(* H(what b has) <= H(input) + the sum of H(m) over what b receives. *)
Lemma view_subadditive z b : b < q ->
  length A ^ ((q - 1) * N)
  * prod (fun t => ignorance (spoken z t) (choices A q)) (entered block b p numbers)
  <= ignorance (view none b (merged none z P block p)) (choices A q)
     * prod (fun _ => N ^ N) (entered block b p numbers).
Proof.
  intros Hb; set (ts := entered block b p numbers).
  assert (S := subadditive_list (fun y => own none y b) (map (fun t => spoken z t) ts)
    (choices A q)).
  rewrite map_length, choices_length, <- (prod_const (N ^ N) ts), prod_map in S.
  eapply Nat.le_trans; [apply Nat.mul_le_mono_r, (own_lacks none A q b A_once A_some Hb)|].
  eapply Nat.le_trans; [exact S|]; apply Nat.mul_le_mono_r, tells_le.
  intros x y Ix Iy; rewrite !(merged_view none z P block f A p good); unfold pair.
  intros [= Eo Em]; f_equal; [easy|].
  assert (E : forall y, map Some (entered block b p (said none (expand z y) p))
                        = map (fun t => spoken z t y) ts).
  { intros; apply entered_numbers, contents_length. }
  assert (inj : forall l l' : list V, map Some l = map Some l' -> l = l').
  { induction l as [|v l IH]; intros [|v' l']; simpl; try easy; intros [=]; f_equal; auto. }
  apply inj; rewrite !E; now rewrite !map_map in Em.
Qed.

Lemma fixed_entropies z : In z (choices A P) ->
  length A ^ (2 * (q - 1) * N)
  * prod (fun t => ignorance (spoken z t) (choices A q)) (passing block p)
  <= prod (fun _ => N ^ N) (passing block p).
Proof.
  intros Iz; set (L := fun y => f (expand z y)).
  assert (B := lacking none q L Hq (merged_solvable none z P q block part f solvable)
    (merged none z P block p) (choices A q)
    (merged_between none z P q block part f A p good)
    (all_product_set none q A Hq A_once A_some)
    (merged_know none z P q block part f A p Iz good)).
  assert (R := Nat.pow_le_mono_l _ _ (q - 2) (result_lacks none q L A Hq
    (merged_solvable none z P q block part f solvable) A_once A_some)).
  rewrite <- Nat.pow_mul_r in R.
  assert (S : prod (fun b => length A ^ ((q - 1) * N)
      * prod (fun t => ignorance (spoken z t) (choices A q)) (entered block b p numbers)) (seq 0 q)
    <= prod (fun b => ignorance (view none b (merged none z P block p)) (choices A q)
      * prod (fun _ => N ^ N) (entered block b p numbers)) (seq 0 q)).
  { apply prod_le; intros b I; apply in_seq in I; apply view_subadditive; lia. }
  assert (goals : forall m, In m p -> block (to m) < q)
    by (intros m I; apply part, (proj1 good m I)).
  rewrite !prod_mul, !(prod_entered _ q block p), prod_const, seq_length, <- Nat.pow_mul_r in S
    by exact goals.
  unfold passing, numbered; rewrite !prod_map.
  rewrite <- (split_square q N Hq), Nat.pow_add_r, <- Nat.mul_assoc in S.
  apply (Nat.mul_le_mono_pos_l _ _ (length A ^ ((q - 1) * N * (q - 2))));
    [apply Nat.neq_0_lt_0, Nat.pow_nonzero; lia|].
  eapply Nat.le_trans; [exact S|]; apply Nat.mul_le_mono_r.
  exact (Nat.le_trans _ _ _ B R).
Qed.

(* Over all ways to fix inputs: all inputs are met, each N times. *)
Lemma all_fixed t :
  ignorance (fun zy => message_at none p t (expand (fst zy) (snd zy)))
            (list_prod (choices A P) (choices A q))
  = (N ^ N) ^ M * ignorance (message_at none p t) (choices A P) ^ N.
Proof.
  set (g := message_at none p t).
  transitivity (ignorance (fun xy : list X * list X => g (fst xy))
    (map (exchange none P q block) (list_prod (choices A P) (choices A q)))).
  - now rewrite ignorance_map.
  - rewrite (ignorance_permutation _ _ _ (exchange_inputs none P q block A Hq part A_once A_some)).
    now rewrite ignorance_fst, !choices_length.
Qed.

Theorem block_entropies :
  length A ^ (2 * (q - 1) * M)
  * prod (fun t => ignorance (message_at none p t) (choices A P)) (passing block p)
  <= (M ^ M) ^ length (passing block p).
Proof.
  set (ts := passing block p).
  set (g := fun t => ignorance (message_at none p t) (choices A P)).
  set (given := fun z t => ignorance (spoken z t) (choices A q)).
  assert (N_pos : 0 < N) by (apply Nat.neq_0_lt_0, Nat.pow_nonzero; lia).
  set (D := prod (fun _ : nat => (N ^ N) ^ M) ts).
  assert (D_pos : 0 < D).
  { apply prod_pos; intros _ _; apply Nat.neq_0_lt_0; do 2 apply Nat.pow_nonzero; lia. }
  (* for fixed inputs, all multiplied *)
  assert (F : length A ^ (2 * (q - 1) * N * M)
              * prod (fun t => prod (fun z => given z t) (choices A P)) ts <= D).
  { rewrite prod_swap, (Nat.pow_mul_r _ _ M), <- (choices_length A P), <- prod_const, <- prod_mul.
    unfold D; rewrite <- (choices_length A P).
    rewrite (prod_ext _ (fun t : nat => prod (fun _ => N ^ N) (choices A P)) ts)
      by (intros; now rewrite prod_const).
    rewrite (prod_swap (fun _ _ => N ^ N)); apply prod_le; intros z Iz.
    now apply fixed_entropies. }
  (* message by message: no less without what is fixed *)
  assert (E : D * prod (fun t => g t ^ N) ts
              <= prod (fun t => prod (fun z => given z t) (choices A P)) ts
                 * prod (fun _ => (M ^ M) ^ N) ts).
  { unfold D; rewrite <- !prod_mul; apply prod_le; intros t _.
    assert (S := entropy_given_coins (choices A P) (choices A q)
      (fun z y => message_at none p t (expand z y)) (choices_once A P A_once)).
    cbv beta in S; rewrite all_fixed, !choices_length in S; specialize (S N_pos); fold (g t) in S.
    assert (Q : (M * N) ^ (M * N) = (M ^ M) ^ N * (N ^ N) ^ M).
    { rewrite Nat.pow_mul_l; f_equal; [now rewrite Nat.pow_mul_r|].
      now rewrite Nat.mul_comm, Nat.pow_mul_r. }
    rewrite Q in S; apply (Nat.mul_le_mono_pos_l _ _ ((N ^ N) ^ M));
      [apply Nat.neq_0_lt_0; do 2 apply Nat.pow_nonzero; lia|].
    eapply Nat.le_trans; [exact S|]; unfold given; apply Nat.eq_le_incl; ring. }
  assert (R : prod (fun _ : nat => (M ^ M) ^ N) ts = ((M ^ M) ^ length ts) ^ N)
    by (rewrite prod_const, <- !Nat.pow_mul_r; f_equal; ring).
  rewrite prod_pow, R in E; replace (2 * (q - 1) * N * M) with (2 * (q - 1) * M * N) in F by ring.
  rewrite Nat.pow_mul_r in F.
  apply (Nat.pow_le_mono_l_iff _ _ N); [lia|]; rewrite Nat.pow_mul_l.
  apply (Nat.mul_le_mono_pos_l _ _ D D_pos).
  rewrite Nat.mul_assoc, (Nat.mul_comm D), <- Nat.mul_assoc.
  eapply Nat.le_trans; [apply Nat.mul_le_mono_l, E|].
  rewrite Nat.mul_assoc; now apply Nat.mul_le_mono_r.
Qed.
End Entropies.

(* Every rank a block; what a rank tells itself counts, too. *)
Theorem entropies {X V Y} `{Eq X} `{Eq V} `{Eq Y} (none : X) P (f : list X -> Y) A
    (p : @protocol X V) : 2 <= P ->
  (forall x k a, length x = P -> k < P -> f (put k a x) = f x -> a = own none x k) ->
  NoDup A -> 0 < length A -> computes none P (choices A P) f p ->
  let M := length A ^ P in
  length A ^ (2 * (P - 1) * M)
  * prod (fun t => ignorance (message_at none p t) (choices A P)) (seq 0 (length p))
  <= (M ^ M) ^ length p.
Proof.
  intros HP solvable A_once A_some good M; set (self := fun r : rank => r).
  assert (B := block_entropies none P P self f A HP (singletons P) solvable A_once A_some p good).
  fold M in B; rewrite <- prod_const in B.
  assert (all : forall g : nat -> nat, prod g (seq 0 (length p)) = prod g (passing self p)
    * prod (fun mt => g (snd mt))
           (filter (fun mt => negb (passes self (fst mt))) (combine p (seq 0 (length p))))).
  { intros g; unfold passing, numbered; rewrite <- (combine_numbers p) at 1; rewrite !prod_map.
    symmetry; apply prod_filter. }
  replace ((M ^ M) ^ length p) with (prod (fun _ => M ^ M) (seq 0 (length p)))
    by now rewrite prod_const, seq_length.
  rewrite !all, Nat.mul_assoc; apply Nat.mul_le_mono; [exact B|].
  apply prod_le; intros mt _; unfold M; rewrite <- (choices_length A P); apply ignorance_le.
Qed.
