(* Sums over a finite abelian group, and coins where messages vary in length. *)

From Coq Require Import List Arith Bool QArith Lia.
From optcc Require Import Model Blocks Protocols Rational Products Coding Received Merging
  Alphabets Lengths BlockLengths Entropies.
Import ListNotations.
Open Scope nat_scope.

(* The sum and all inputs but one tell that one. *)
Lemma sum_put G x k : k < length x ->
  exists rest, forall a, sum G (put k a x) = add G a rest.
Proof.
  revert k; induction x as [|b x IH]; intros k Hk; [easy|]; destruct k as [|k]; simpl in *.
  - now exists (sum G x).
  - destruct (IH k) as [rest E]; [lia|]; exists (add G b rest); intros a.
    change (add G b (sum G (put k a x)) = add G a (add G b rest)).
    rewrite E, !add_assoc; f_equal; apply add_comm.
Qed.

Lemma put_own {X} (none : X) k x : put k (own none x k) x = x.
Proof.
  revert k; induction x as [|b x IH]; intros [|k]; simpl; try easy.
  unfold own in *; simpl; now rewrite IH.
Qed.

Lemma sum_solvable G x k a : k < length x ->
  sum G (put k a x) = sum G x -> a = own (zero G) x k.
Proof.
  intros Hk E; destruct (sum_put G x k Hk) as [rest R].
  rewrite <- (put_own (zero G) k x) in E at 2; rewrite !R in E.
  assert (C : forall b, b = add G (add G b rest) (neg G rest)).
  { intros b; now rewrite <- add_assoc, add_neg, add_zero. }
  now rewrite (C a), (C (own _ x k)), E.
Qed.

Lemma order_pos G : 0 < order G.
Proof.
  unfold order; generalize (each G (zero G)); destruct (elements G); simpl; [easy | lia].
Qed.

Lemma two_ranks P q block : partitions P q block -> 2 <= q -> 2 <= P.
Proof.
  intros [_ onto] Hq; destruct (onto 0) as (r & ? & ?), (onto 1) as (r' & ? & ?); try lia.
  destruct P as [|[|P]]; try lia; assert (r = r') by lia; congruence.
Qed.

Section Sums.
Variables (G : group) (P : nat).
Hypothesis HP : 2 <= P.

Let solvable : forall x k a, length x = P -> k < P ->
  sum G (put k a x) = sum G x -> a = own (zero G) x k.
Proof. intros x k a L Hk; apply sum_solvable; lia. Qed.

Section Fixed.
Context {V : Type} `{Eq V}.
Variable p : @protocol (carrier G) V.
Hypothesis good : sums G P p.

Theorem entropies_sum :
  order G ^ (2 * (P - 1) * order G ^ P)
  * prod (fun t => ignorance (message_at (zero G) p t) (inputs G P)) (seq 0 (length p))
  <= ((order G ^ P) ^ (order G ^ P)) ^ length p.
Proof. exact (entropies (zero G) P (sum G) _ p HP solvable (once G) (order_pos G) good). Qed.

Theorem partition_entropies_sum q block : 2 <= q -> partitions P q block ->
  order G ^ (2 * (q - 1) * order G ^ P)
  * prod (fun t => ignorance (message_at (zero G) p t) (inputs G P)) (passing block p)
  <= ((order G ^ P) ^ (order G ^ P)) ^ length (passing block p).
Proof.
  intros Hq part; exact (block_entropies (zero G) P q block (sum G) _ Hq part solvable (once G)
    (order_pos G) p good).
Qed.

Variable alphabets : list (list V).
Hypothesis speaks : in_alphabets (zero G) (inputs G P) p alphabets.

Theorem partition_sum q block : 2 <= q -> partitions P q block ->
  order G ^ (2 * (q - 1))
  <= prod (fun ma => length (snd ma))
          (filter (fun ma => passes block (fst ma)) (combine p alphabets)).
Proof.
  intros Hq part.
  exact (alphabets_between_blocks (zero G) P q block (sum G) _ Hq part solvable (once G)
    (order_pos G) p alphabets good speaks).
Qed.

Theorem into_block_sum block b : partitions P 2 block -> b < 2 ->
  order G <= prod (@length V) (entered block b p alphabets).
Proof.
  intros part Hb.
  exact (alphabets_into_block (zero G) P 2 block (sum G) _ (le_n 2) part solvable (once G)
    (order_pos G) p alphabets good speaks b eq_refl Hb).
Qed.

Theorem alphabets_sum : order G ^ (2 * (P - 1)) <= prod (@length V) alphabets.
Proof.
  eapply Nat.le_trans; [apply (partition_sum P (fun r => r) HP (singletons P))|].
  apply (prod_passing (@length V)); intros c I.
  assert (F := speaks (repeat (zero G) P)).
  assert (J : In (repeat (zero G) P) (inputs G P)).
  { apply in_choices; split; [apply repeat_length | intros; apply each]. }
  specialize (F J); destruct (in_split _ _ I) as (c1 & c2 & ->).
  apply Forall2_app_inv_r in F; destruct F as (l1 & l2 & _ & F & _).
  inversion_clear F as [|v ? l2' ? Iv]; destruct c; simpl in *; [easy | lia].
Qed.
End Fixed.

Theorem average_sum (p : @protocol (carrier G) bits) :
  sums G P p -> prefix_free (zero G) (inputs G P) p ->
  order G ^ (2 * (P - 1) * order G ^ P) <= 2 ^ list_sum (map (bits_sent (zero G) p) (inputs G P)).
Proof.
  exact (average (zero G) P (sum G) _ p HP solvable (once G) (order_pos G)).
Qed.

Theorem tree_average_sum (p : tree (carrier G) bits) :
  tree_sums G P p -> tree_prefix_free (zero G) P (inputs G P) p ->
  order G ^ (2 * (P - 1) * order G ^ P) <= 2 ^ list_sum (map (tree_bits (zero G) P p) (inputs G P)).
Proof.
  intros good; exact (tree_average (zero G) P (sum G) _ HP solvable (once G) (order_pos G) p
    (proj1 good) (computes_know _ P _ p _ good)).
Qed.

Theorem lacking_sum {V} `{Eq V} (p : tree (carrier G) V) : tree_sums G P p ->
  prod (fun r => ignorance (fun x => (own (zero G) x r, heard (zero G) r p x)) (inputs G P))
       (seq 0 P)
  <= ignorance (sum G) (inputs G P) ^ (P - 2).
Proof.
  intros good; exact (lacking (zero G) P (sum G) HP solvable p (inputs G P) (proj1 good)
    (all_product_set (zero G) P _ HP (once G) (order_pos G)) (computes_know _ P _ p _ good)).
Qed.

(* Coins: one protocol for each way in which all of them may fall. *)
Lemma with_coins {C} (coins : list C) (h : C -> nat) k m :
  (forall c, In c coins -> order G ^ (k * m) <= 2 ^ h c) ->
  order G ^ (k * (m * length coins)) <= 2 ^ list_sum (map h coins).
Proof.
  intros B; rewrite Nat.mul_assoc, Nat.pow_mul_r, <- prod_two, <- prod_const; now apply prod_le.
Qed.

Theorem average_with_coins {C} (coins : list C) (p : C -> @protocol (carrier G) bits) :
  (forall c, In c coins -> sums G P (p c) /\ prefix_free (zero G) (inputs G P) (p c)) ->
  order G ^ (2 * (P - 1) * (order G ^ P * length coins))
  <= 2 ^ list_sum (map (fun c => list_sum (map (bits_sent (zero G) (p c)) (inputs G P))) coins).
Proof. intros I; apply with_coins; intros c Ic; now apply average_sum; apply I. Qed.

Theorem partition_average_with_coins {C} (coins : list C) (p : C -> @protocol (carrier G) bits)
    q block : 2 <= q -> partitions P q block ->
  (forall c, In c coins -> sums G P (p c) /\ prefix_free (zero G) (inputs G P) (p c)) ->
  order G ^ (2 * (q - 1) * (order G ^ P * length coins))
  <= 2 ^ list_sum (map (fun c =>
            list_sum (map (bits_passing (zero G) block (p c)) (inputs G P))) coins).
Proof.
  intros Hq part I; apply with_coins; intros c Ic; destruct (I c Ic).
  now apply (block_average (zero G) P q block (sum G) _ Hq part solvable (once G) (order_pos G)).
Qed.

Theorem tree_average_with_coins {C} (coins : list C) (p : C -> tree (carrier G) bits) :
  (forall c, In c coins ->
     tree_sums G P (p c) /\ tree_prefix_free (zero G) P (inputs G P) (p c)) ->
  order G ^ (2 * (P - 1) * (order G ^ P * length coins))
  <= 2 ^ list_sum (map (fun c => list_sum (map (tree_bits (zero G) P (p c)) (inputs G P))) coins).
Proof. intros I; apply with_coins; intros c Ic; now apply tree_average_sum; apply I. Qed.
End Sums.
