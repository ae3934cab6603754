(* The headline statements.  Together with the definitions in Model.v and Protocols.v
   this file says everything that is claimed; every proof is one reference to the file that
   holds it.  check.py builds all files and asks Coq for the assumptions of every
   theorem below: the answer must be "Closed under the global context". *)

From Coq Require Import List Arith Bool QArith Qminmax.
From optcc Require Import Model Once Blocks Time Tight Optimal Shares Nested Overhead.
From optcc Require Import Protocols Sums HalfProgram Coins CodedTime Gather Scheduled.
Open Scope nat_scope.

(* ======================================================================== *)
(* 1. What AllReduce means: exactly_once where a bound is reached, the weaker
   is_allreduce where nothing is faster                                       *)

(* In every abelian group, every rank ends with the sum of all contributions. *)
Theorem exactly_once_sums P n s A (add : A -> A -> A) zero (x : values A) e r :
  commutative_monoid add zero -> exactly_once P n s -> e < n -> r < P ->
  result add s x e r = sum_of add zero P (x e).
Proof. exact (fun laws => exactly_once_sums add zero laws P n s x e r). Qed.

(* So every lower bound below holds for what is exactly once, too. *)
Theorem exactly_once_is_allreduce P n s : exactly_once P n s -> is_allreduce P n s.
Proof. exact (exactly_once_is_allreduce P n s). Qed.

(* Not the other way round: sets of contributors do not see that one is added twice.
   Counts do, whichever of the transfers add. *)
Theorem double_count_is_allreduce a b c d e : is_allreduce 3 1 (double_count a b c d e).
Proof. exact (double_count_is_allreduce a b c d e). Qed.

Theorem double_count_is_refused a b c d e : ~ exactly_once 3 1 (double_count a b c d e).
Proof. exact (double_count_is_refused a b c d e). Qed.

(* ======================================================================== *)
(* 2. Traffic and partition bounds: numbers of transfers                      *)

(* Each element is sent at least 2(P-1) times. *)
Theorem traffic_per_element P n s e :
  is_allreduce P n s -> e < n -> 2 * (P - 1) <= count (of_element e) s.
Proof. exact (fun good => traffic_per_element P n s good e). Qed.

Theorem traffic P n s : is_allreduce P n s -> 2 * (P - 1) * n <= length s.
Proof. exact (traffic_total P n s). Qed.

(* The count is exact. *)
Theorem traffic_attained P n :
  1 <= P -> exists s, exactly_once P n s /\ length s = 2 * (P - 1) * n.
Proof. exact (traffic_attained P n). Qed.

(* However the ranks are divided into q blocks, each element crosses from block to
   block at least 2(q-1) times. *)
Theorem partition_per_element P q n block s e :
  partitions P q block -> is_allreduce P n s -> e < n ->
  2 * (q - 1) <= count (fun t => of_element e t && crosses block t) s.
Proof. exact (fun part good => partition_per_element block P q n s part good e). Qed.

Theorem partition P q n block s :
  partitions P q block -> is_allreduce P n s ->
  2 * (q - 1) * n <= count (crosses block) s.
Proof. exact (partition_total block P q n s). Qed.

(* ======================================================================== *)
(* 3. Cut bound: numbers of transfers                                         *)

(* Each element leaves each rank and enters each rank at least once. *)
Theorem cut_sends P n s e r :
  2 <= P -> is_allreduce P n s -> e < n -> r < P ->
  exists t, In t s /\ elt t = e /\ src t = r /\ dst t <> r.
Proof.
  exact (fun HP good => block_sends (fun x => x) P P n s (singletons P) good e r HP).
Qed.

Theorem cut_receives P n s e r :
  2 <= P -> is_allreduce P n s -> e < n -> r < P ->
  exists t, In t s /\ elt t = e /\ dst t = r /\ src t <> r.
Proof.
  exact (fun HP good => block_receives (fun x => x) P P n s (singletons P) good e r HP).
Qed.

(* ======================================================================== *)
(* 4. Time bounds, for rational rates (elements per second)                   *)

Open Scope Q_scope.

Theorem cut_time P n s T out inn r :
  (2 <= P)%nat -> is_allreduce P n s -> positive P out -> positive P inn ->
  fits P s T out inn -> (r < P)%nat ->
  Qnat n / out r <= T /\ Qnat n / inn r <= T.
Proof. exact (fun HP good po pi f => cut_time P n s T out inn HP good po pi f r). Qed.

Theorem traffic_time P n s T out inn :
  (2 <= P)%nat -> is_allreduce P n s -> positive P out -> positive P inn ->
  fits P s T out inn ->
  Qnat (2 * (P - 1) * n) / sumQ P out <= T /\
  Qnat (2 * (P - 1) * n) / sumQ P inn <= T.
Proof. exact (traffic_time P n s T out inn). Qed.

(* The rates are now those of blocks: what may leave and enter each of them. *)
Theorem partition_time P q n block s T out inn :
  partitions P q block -> is_allreduce P n s -> (2 <= q)%nat ->
  positive q out -> positive q inn -> blocks_fit q block s T out inn ->
  Qnat (2 * (q - 1) * n) / sumQ q out <= T /\
  Qnat (2 * (q - 1) * n) / sumQ q inn <= T.
Proof. exact (partition_time P q n block s T out inn). Qed.

Theorem block_cut_time P q n block s T out inn b :
  partitions P q block -> is_allreduce P n s -> (2 <= q)%nat ->
  positive q out -> positive q inn -> blocks_fit q block s T out inn ->
  (b < q)%nat -> Qnat n / out b <= T /\ Qnat n / inn b <= T.
Proof.
  exact (fun part good Hq po pi f =>
    block_cut_time P q n block s T out inn part good Hq po pi f b).
Qed.

(* All of it in one number ... *)
Theorem lower_bound P n s T out inn :
  (2 <= P)%nat -> is_allreduce P n s -> positive P out -> positive P inn ->
  fits P s T out inn -> best_time P n out inn <= T.
Proof. exact (lower_bound P n s T out inn). Qed.

(* ... which some schedule reaches, whatever the rates. *)
Theorem lower_bound_attained P out inn :
  (2 <= P)%nat -> positive P out -> positive P inn ->
  exists n s, (0 < n)%nat /\ exactly_once P n s /\
    fits P s (best_time P n out inn) out inn.
Proof. exact (lower_bound_attained P out inn). Qed.

(* ======================================================================== *)
(* 5. Nested rings                                                            *)

Theorem shares_nonneg P L m :
  (3 <= P)%nat -> admissible_loads P L -> (1 <= m <= P)%nat -> 0 <= share P L m.
Proof. exact (fun HP adm => share_nonneg P L HP adm m). Qed.

Theorem shares_sum P L :
  (3 <= P)%nat -> admissible_loads P L -> sum1 P (share P L) == 1.
Proof. exact (share_sum P L). Qed.

(* Server i gets exactly the load L_i. *)
Theorem shares_load P L i :
  (3 <= P)%nat -> admissible_loads P L -> (1 <= i <= P)%nat ->
  sum1 P (fun m => share P L m * load_in_pattern P m i) == L i.
Proof. exact (fun HP adm => share_load P L HP adm i). Qed.

(* So, with n elements in time T, no rate is exceeded, and a rate whose L_i is
   B_i T / n is used in full. *)
Theorem shares_fit P L i n T (B : nat -> Q) :
  (3 <= P)%nat -> admissible_loads P L -> (1 <= i <= P)%nat -> 0 < n ->
  L i <= B i * T / n ->
  let load := n * sum1 P (fun m => share P L m * load_in_pattern P m i) in
  load <= B i * T /\ (L i == B i * T / n -> load == B i * T).
Proof. exact (fun HP adm => share_fit P L HP adm i n T B). Qed.

(* The loads in the formula are those of real schedules: a plan with n x_m elements
   in pattern m sums everything exactly once, and rank r sends and receives n L_(r+1). *)
Theorem nested_rings_carry P L :
  (3 <= P)%nat -> admissible_loads P L ->
  exists plan : list (nat * nat),
    let n := length plan in
    let s := nested_rings P plan in
    (0 < n)%nat /\ exactly_once P n s /\
    (forall m, (1 <= m <= P)%nat ->
       Qnat (length (filter (fun a => (fst a =? m)%nat) plan))
       == Qnat n * share P L m) /\
    (forall r, (r < P)%nat ->
       Qnat (sent r s) == Qnat n * L (S r) /\
       Qnat (received r s) == Qnat n * L (S r)).
Proof. exact (nested_rings_carry P L). Qed.

(* With equal rates in and out, slowest first, nested rings reach the bound. *)
Theorem nested_rings_optimal P B :
  (3 <= P)%nat -> positive P B ->
  (forall r, (S r < P)%nat -> B r <= B (S r)) ->
  exists plan : list (nat * nat),
    let n := length plan in
    let s := nested_rings P plan in
    (0 < n)%nat /\ exactly_once P n s /\ fits P s (best_time P n B B) B B.
Proof. exact (nested_rings_optimal P B). Qed.

(* ======================================================================== *)
(* 6. One straggler at 1/l of the rate of the others                          *)

(* T0, the optimum without a failure. *)
Theorem healthy_time P n B :
  (2 <= P)%nat -> 0 < B ->
  best_time P n (healthy B) (healthy B) == Qnat (2 * (P - 1) * n) / (Qnat P * B).
Proof. exact (healthy_time P n B). Qed.

Theorem single_straggler P n B l :
  (2 <= P)%nat -> 0 < B -> 1 <= l ->
  best_time P n (straggler B l) (straggler B l)
  == best_time P n (healthy B) (healthy B) * overhead P l.
Proof. exact (straggler_time P n B l). Qed.

(* The traffic bound rules up to l_c = (2P-3)/(P-1), the cut bound from there. *)
Theorem switch_below P l :
  (2 <= P)%nat -> 1 <= l -> l <= Qnat (2 * P - 3) / Qnat (P - 1) ->
  overhead P l == Qnat P / (Qnat (P - 1) + 1 / l).
Proof. exact (switch_below P l). Qed.

Theorem switch_above P l :
  (2 <= P)%nat -> 1 <= l -> Qnat (2 * P - 3) / Qnat (P - 1) <= l ->
  overhead P l == l * Qnat P / Qnat (2 * (P - 1)).
Proof. exact (switch_above P l). Qed.

(* Half the rate lost, or less: at most 1/(P-1) above T0, and exactly that at 1/2. *)
Theorem one_over_p P l :
  (2 <= P)%nat -> 1 <= l -> l <= 2 ->
  1 <= overhead P l /\ overhead P l <= 1 + 1 / Qnat (P - 1).
Proof. exact (one_over_p P l). Qed.

Theorem one_over_p_exact P : (2 <= P)%nat -> overhead P 2 == 1 + 1 / Qnat (P - 1).
Proof. exact (one_over_p_exact P). Qed.

(* ======================================================================== *)
(* 6. Any protocol that sums over a finite abelian group, coded or not          *)

(* With n = log2 |G| bits per input: the alphabets of the messages, whatever they
   are, take 2(P-1) n bits,   sum of log2 |alphabet| >= 2(P-1) log2 |G|. *)
Theorem coding {V} `{Eq V} G P (p : protocol) (alphabets : list (list V)) :
  (2 <= P)%nat -> sums G P p -> in_alphabets (zero G) (inputs G P) p alphabets ->
  (order G ^ (2 * (P - 1)) <= prod (@length V) alphabets)%nat.
Proof. exact (fun HP good => alphabets_sum G P HP p good alphabets). Qed.

(* This is exact, and [sums] is not an empty notion. *)
Theorem coding_attained G P :
  (1 <= P)%nat -> exists (p : protocol) (alphabets : list (list (carrier G))),
    sums G P p /\ in_alphabets (zero G) (inputs G P) p alphabets /\
    prod (@length (carrier G)) alphabets = (order G ^ (2 * (P - 1)))%nat.
Proof. exact (attained G P). Qed.

(* Not only the alphabets, the entropies sum to 2(P-1) n or more.  With M = |G|^P equally
   likely inputs, M ^ M / ignorance is 2 ^ (M H(message)); all is to the power of M. *)
Theorem coding_entropies {V} `{Eq V} G P (p : @protocol (carrier G) V) :
  (2 <= P)%nat -> sums G P p ->
  let M := (order G ^ P)%nat in
  (order G ^ (2 * (P - 1) * M)
   * prod (fun t => ignorance (message_at (zero G) p t) (inputs G P)) (seq 0 (length p))
   <= (M ^ M) ^ length p)%nat.
Proof. exact (fun HP => entropies_sum G P HP p). Qed.

(* The same with coins, a protocol for each way in which those of all ranks may fall: the
   cases are pairs of coins and inputs. *)
Theorem coding_entropies_with_coins {C V} `{Eq C} `{Eq V} (coins : list C) G P
    (p : C -> @protocol (carrier G) V) T :
  NoDup coins -> (2 <= P)%nat ->
  (forall c, In c coins -> sums G P (p c) /\ length (p c) = T) ->
  let M := (order G ^ P * length coins)%nat in
  (order G ^ (2 * (P - 1) * M)
   * prod (fun t => ignorance (fun cx => message_at (zero G) (p (fst cx)) t (snd cx))
                              (list_prod coins (inputs G P))) (seq 0 T)
   <= (M ^ M) ^ T)%nat.
Proof. exact (entropies_with_coins coins G P p T). Qed.

(* However the ranks are divided into q blocks: what passes between them, in messages
   whose numbers are ts. *)
Theorem coding_partition_entropies {C V} `{Eq C} `{Eq V} (coins : list C) G P q block
    (p : C -> @protocol (carrier G) V) ts :
  NoDup coins -> (2 <= q)%nat -> partitions P q block ->
  (forall c, In c coins -> sums G P (p c) /\ passing block (p c) = ts) ->
  let M := (order G ^ P * length coins)%nat in
  (order G ^ (2 * (q - 1) * M)
   * prod (fun t => ignorance (fun cx => message_at (zero G) (p (fst cx)) t (snd cx))
                              (list_prod coins (inputs G P))) ts
   <= (M ^ M) ^ length ts)%nat.
Proof. exact (partition_entropies_with_coins coins G P q block p ts). Qed.

Theorem coding_partition {V} `{Eq V} G P q block (p : protocol) (alphabets : list (list V)) :
  (2 <= q)%nat -> partitions P q block ->
  sums G P p -> in_alphabets (zero G) (inputs G P) p alphabets ->
  (order G ^ (2 * (q - 1))
   <= prod (fun ma => length (snd ma))
           (filter (fun ma => passes block (fst ma)) (combine p alphabets)))%nat.
Proof.
  exact (fun Hq part good speaks =>
    partition_sum G P (two_ranks P q block part Hq) p good alphabets speaks q block Hq part).
Qed.

(* Messages of varying length: on average over inputs and coins no fewer than
   2(P-1) log2 |G| bits are sent. *)
Theorem coding_average {C} (coins : list C) G P (p : C -> protocol) :
  (2 <= P)%nat ->
  (forall c, In c coins -> sums G P (p c) /\ prefix_free (zero G) (inputs G P) (p c)) ->
  (order G ^ (2 * (P - 1) * (order G ^ P * length coins))
   <= 2 ^ list_sum (map (fun c =>
            list_sum (map (bits_sent (zero G) (p c)) (inputs G P))) coins))%nat.
Proof. exact (fun HP => average_with_coins G P HP coins p). Qed.

Theorem coding_partition_average {C} (coins : list C) G P q block
    (p : C -> @protocol (carrier G) bits) :
  (2 <= q)%nat -> partitions P q block ->
  (forall c, In c coins -> sums G P (p c) /\ prefix_free (zero G) (inputs G P) (p c)) ->
  (order G ^ (2 * (q - 1) * (order G ^ P * length coins))
   <= 2 ^ list_sum (map (fun c =>
            list_sum (map (bits_passing (zero G) block (p c)) (inputs G P))) coins))%nat.
Proof.
  exact (fun Hq part =>
    partition_average_with_coins G P (two_ranks P q block part Hq) coins p q block Hq part).
Qed.

(* Who speaks next may be decided on the way.  What ranks lack of all inputs, added up:
   sum over r of H(inputs | input of r, heard by r) <= (P-2) H(inputs | sum). *)
Theorem coding_lacking {V} `{Eq V} G P (p : tree (carrier G) V) :
  (2 <= P)%nat -> tree_sums G P p ->
  (prod (fun r => ignorance (fun x => (own (zero G) x r, heard (zero G) r p x)) (inputs G P))
        (seq 0 P)
   <= ignorance (sum G) (inputs G P) ^ (P - 2))%nat.
Proof. exact (fun HP => lacking_sum G P HP p). Qed.

(* Hence the bits that all ranks receive, on average over inputs and coins. *)
Theorem coding_adaptive {C} (coins : list C) G P (p : C -> tree (carrier G) bits) :
  (2 <= P)%nat ->
  (forall c, In c coins ->
     tree_sums G P (p c) /\ tree_prefix_free (zero G) P (inputs G P) (p c)) ->
  (order G ^ (2 * (P - 1) * (order G ^ P * length coins))
   <= 2 ^ list_sum (map (fun c =>
            list_sum (map (tree_bits (zero G) P (p c)) (inputs G P))) coins))%nat.
Proof. exact (fun HP => tree_average_with_coins G P HP coins p). Qed.

(* Time, if an input has n bits or more and message i of p takes lengths_i bits. *)
Theorem coding_time {V} `{Eq V} G P n (p : @protocol (carrier G) V) lengths T out inn :
  (2 <= P)%nat -> sums G P p -> takes (zero G) (inputs G P) p lengths ->
  (2 ^ n <= order G)%nat -> positive P out -> positive P inn ->
  coded_fits P p lengths T out inn ->
  Qnat (2 * (P - 1) * n) / sumQ P out <= T /\
  Qnat (2 * (P - 1) * n) / sumQ P inn <= T.
Proof.
  exact (fun HP good bits size => coded_time G P n p lengths HP good bits size T out inn).
Qed.

Theorem coding_partition_time {V} `{Eq V} G P q block n (p : @protocol (carrier G) V) lengths
    T out inn :
  (2 <= q)%nat -> partitions P q block ->
  sums G P p -> takes (zero G) (inputs G P) p lengths -> (2 ^ n <= order G)%nat ->
  positive q out -> positive q inn -> coded_blocks_fit q block p lengths T out inn ->
  Qnat (2 * (q - 1) * n) / sumQ q out <= T /\
  Qnat (2 * (q - 1) * n) / sumQ q inn <= T.
Proof.
  exact (fun Hq part good bits size =>
    coded_partition_time G P n p lengths (two_ranks P q block part Hq) good bits size T out inn
      q block Hq part).
Qed.

(* The cut bound, too, and so all of [lower_bound]. *)
Theorem coding_lower_bound {V} `{Eq V} G P n (p : @protocol (carrier G) V) lengths T out inn :
  (2 <= P)%nat -> sums G P p -> takes (zero G) (inputs G P) p lengths ->
  (2 ^ n <= order G)%nat -> positive P out -> positive P inn ->
  coded_fits P p lengths T out inn -> best_time P n out inn <= T.
Proof.
  exact (fun HP good bits size => coded_lower_bound G P n p lengths HP good bits size T out inn).
Qed.

(* ... which some protocol reaches, for vectors of bits under exclusive or: a schedule
   that forwards and adds.  So [best_time] is the optimum over all protocols. *)
Theorem coding_lower_bound_attained P out inn :
  (2 <= P)%nat -> positive P out -> positive P inn ->
  exists n G (p : @protocol (carrier G) bool) lengths,
    (0 < n)%nat /\ order G = (2 ^ n)%nat /\ sums G P p /\
    takes (zero G) (inputs G P) p lengths /\
    coded_fits P p lengths (best_time P n out inn) out inn.
Proof. exact (coded_bound_reached P out inn). Qed.

(* ======================================================================== *)
(* 7. Half of the linear program, on any network, for protocols that may code   *)

(* The reduce part of message t is g = H(message t | sum, messages before t), of entropy
   H(message t) altogether; r of rank k is n less the reduce parts of what k sends.  To the
   power of M = |G|^P, open t over open (t+1) is 2 ^ g.
   The reduce parts of all messages sum to (P-1) n, so that r sums to n over the ranks; each is
   between 0 and the entropy; and those of what one rank sends sum to n at most: r >= 0. *)
Theorem half_program_parts {V} `{Eq V} G P (p : @protocol (carrier G) V) :
  (2 <= P)%nat -> sums G P p ->
  let M := (order G ^ P)%nat in
  let open := unknown (zero G) (inputs G P) (sum G) p in
  (open 0 = order G ^ ((P - 1) * M) /\ open (length p) = 1 /\
   (forall t, open (S t) <= open t) /\
   (forall t, open t * ignorance (message_at (zero G) p t) (inputs G P) <= open (S t) * M ^ M) /\
   (forall k, k < P ->
      prod open (numbered (fun m => Nat.eqb (from m) k) p)
      <= order G ^ M * prod (fun t => open (S t)) (numbered (fun m => Nat.eqb (from m) k) p)))%nat.
Proof. exact (fun HP => half_parts G P p HP). Qed.

(* All broadcast cuts: around any set of ranks that is not empty the entropies of what enters
   it are n or more, less r of the set, plus their reduce parts.  With r as defined: n, plus
   the reduce parts of the messages with an end in the set, is no more than n for each of
   its ranks and the entropies of what enters. *)
Theorem half_program_cuts {V} `{Eq V} G P (p : @protocol (carrier G) V) inside :
  (2 <= P)%nat -> sums G P p -> (exists r, (r < P)%nat /\ inside r = true) ->
  let M := (order G ^ P)%nat in
  let open := unknown (zero G) (inputs G P) (sum G) p in
  let size := length (filter inside (seq 0 P)) in
  let into := numbered (enters inside) p in
  let at_it := numbered (touches inside) p in
  (prod (fun t => ignorance (message_at (zero G) p t) (inputs G P)) into * prod open at_it
   <= order G ^ ((size - 1) * M) * (M ^ M) ^ length into * prod (fun t => open (S t)) at_it)%nat.
Proof. exact (fun HP good => half_cuts G P p HP good inside). Qed.
