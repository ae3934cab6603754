(* The model: every definition the headline statements use, and nothing else.

   Read this file and Headlines.v to know WHAT is claimed; all other files say
   why it is true.  Only Coq's standard library is used. *)

From Coq Require Import List Arith Bool QArith Qminmax.
Import ListNotations.
Open Scope nat_scope.

(* ------------------------------------------------------------------------ *)
(* Schedules                                                                  *)

(* P ranks 0..P-1 each own a vector of n elements 0..n-1. *)
Definition rank := nat.
Definition element := nat.

(* One transfer carries one (partially reduced) element from one rank to another,
   where it is added to what is there, or copied over it.  A schedule is a finite
   list of transfers, in order of completion. *)
Record transfer := Transfer { src : rank; dst : rank; elt : element; adds : bool }.
Definition schedule := list transfer.

Definition among (P : nat) (s : schedule) : Prop :=
  forall t, In t s -> src t < P /\ dst t < P.

(* Two notions of AllReduce follow.  Lower bounds use the weaker one, sets of
   contributors, so that they exclude as much as possible.  That a bound is reached
   is said with the stronger one, sums.  Headlines.v states that it is stronger. *)

(* ------------------------------------------------------------------------ *)
(* Sets of contributors: for lower bounds                                     *)

(* [K e r c = true]: what rank r holds for element e includes the contribution
   of rank c.  In the beginning every rank holds its own contribution only. *)
Definition knowledge := element -> rank -> rank -> bool.
Definition initial : knowledge := fun _ r c => r =? c.

(* A transfer of e from s to d gives d everything that s holds for e, and d
   loses nothing: K(e,d) := K(e,d) u K(e,s), whether it adds or copies.  This is at
   least as generous as either, so every lower bound below holds for both.  It does
   not cover coding ACROSS elements, as Protocols.v does. *)
Definition step (K : knowledge) (t : transfer) : knowledge :=
  fun e r c => K e r c || ((e =? elt t) && (r =? dst t) && K e (src t) c).

Definition final (s : schedule) : knowledge := fold_left step s initial.

(* All transfers are between the P ranks, and in the end every rank holds the
   contribution of every rank to every element.  A contribution that is added twice
   does no harm here: a schedule may be an AllReduce in this sense whose sums are
   wrong. *)
Definition is_allreduce (P n : nat) (s : schedule) : Prop :=
  among P s /\
  (forall e r c, e < n -> r < P -> c < P -> final s e r c = true).

(* ------------------------------------------------------------------------ *)
(* Sums: for schedules that reach a bound                                     *)

(* [V e r]: the value that rank r holds for element e, in any type with an
   addition.  A transfer does what it says: it adds, or it copies. *)
Definition values (A : Type) := element -> rank -> A.

Definition deliver {A} (add : A -> A -> A) (V : values A) (t : transfer) : values A :=
  fun e r =>
    if (e =? elt t) && (r =? dst t)
    then if adds t then add (V e r) (V e (src t)) else V e (src t)
    else V e r.

Definition result {A} (add : A -> A -> A) (s : schedule) (V : values A) : values A :=
  fold_left (deliver add) s V.

(* How often is the contribution of rank c in what rank r holds of element e?  Give
   rank c a one and all others nothing, run the schedule on these numbers, and look
   at what r holds. *)
Definition one_at (c : rank) : values nat := fun _ r => if r =? c then 1 else 0.
Definition times_held (s : schedule) (e : element) (r c : rank) : nat :=
  result plus s (one_at c) e r.

(* In the end every rank holds every contribution to every element exactly once. *)
Definition exactly_once (P n : nat) (s : schedule) : Prop :=
  among P s /\
  (forall e r c, e < n -> r < P -> c < P -> times_held s e r c = 1).

(* An addition whose order and grouping do not matter, with a zero.  Every abelian group
   is one; inverses are not needed. *)
Definition commutative_monoid {A} (add : A -> A -> A) (zero : A) : Prop :=
  (forall x y z, add x (add y z) = add (add x y) z) /\
  (forall x y, add x y = add y x) /\
  (forall x, add zero x = x).

(* x 0 + ... + x (P-1). *)
Definition sum_of {A} (add : A -> A -> A) (zero : A) (P : nat) (x : rank -> A) : A :=
  fold_right add zero (map x (seq 0 P)).

(* One element and three ranks.  If all transfers add, rank 2 gets the contribution of
   rank 0 twice: directly, and in what rank 1 sends.  a ... e say which of them add. *)
Definition double_count (a b c d e : bool) : schedule :=
  [Transfer 0 1 0 a; Transfer 0 2 0 b; Transfer 1 2 0 c; Transfer 2 0 0 d; Transfer 2 1 0 e].

(* ------------------------------------------------------------------------ *)
(* Counting transfers                                                         *)

Definition count (p : transfer -> bool) (s : schedule) : nat :=
  length (filter p s).

Definition of_element (e : element) (t : transfer) : bool := elt t =? e.
Definition sent (r : rank) : schedule -> nat := count (fun t => src t =? r).
Definition received (r : rank) : schedule -> nat := count (fun t => dst t =? r).

(* A partition of the P ranks into q non-empty blocks 0..q-1. *)
Definition partitions (P q : nat) (block : rank -> nat) : Prop :=
  (forall r, r < P -> block r < q) /\
  (forall b, b < q -> exists r, r < P /\ block r = b).

Definition crosses (block : rank -> nat) (t : transfer) : bool :=
  negb (block (src t) =? block (dst t)).
Definition leaves (block : rank -> nat) (b : nat) (t : transfer) : bool :=
  (block (src t) =? b) && crosses block t.
Definition enters (block : rank -> nat) (b : nat) (t : transfer) : bool :=
  (block (dst t) =? b) && crosses block t.

(* ------------------------------------------------------------------------ *)
(* Time: rational rates, full duplex, bandwidth only                          *)

Open Scope Q_scope.

Definition Qnat (k : nat) : Q := inject_Z (Z.of_nat k).

(* f 0 + ... + f (k-1), and the smallest of f 0, ..., f (k-1) (k >= 1). *)
Definition sumQ (k : nat) (f : nat -> Q) : Q :=
  fold_right Qplus 0 (map f (seq 0 k)).
Definition minQ (k : nat) (f : nat -> Q) : Q :=
  fold_right Qmin (f 0%nat) (map f (seq 0 k)).

Definition positive (k : nat) (f : nat -> Q) : Prop :=
  forall i, (i < k)%nat -> 0 < f i.

(* Within T seconds rank r can send at most T * out r elements and receive at
   most T * inn r.  Latency is zero and order costs nothing: a real network
   takes at least this long, so a bound on T here is a bound there. *)
Definition fits (P : nat) (s : schedule) (T : Q) (out inn : rank -> Q) : Prop :=
  forall r, (r < P)%nat ->
    Qnat (sent r s) <= T * out r /\ Qnat (received r s) <= T * inn r.

(* The same for blocks of a partition: only what crosses a border counts. *)
Definition blocks_fit (q : nat) (block : rank -> nat) (s : schedule) (T : Q)
    (out inn : nat -> Q) : Prop :=
  forall b, (b < q)%nat ->
    Qnat (count (leaves block b) s) <= T * out b /\
    Qnat (count (enters block b) s) <= T * inn b.

(* The larger of the cut bound and the traffic bound, over both directions. *)
Definition best_time (P n : nat) (out inn : rank -> Q) : Q :=
  Qmax (Qmax (Qnat n / minQ P out) (Qnat n / minQ P inn))
       (Qmax (Qnat (2 * (P - 1) * n) / sumQ P out)
             (Qnat (2 * (P - 1) * n) / sumQ P inn)).

(* ------------------------------------------------------------------------ *)
(* Nested rings                                                               *)

(* Servers 1..P, the slowest first.  In pattern m the m last (strongest) form a
   ring and the others are leaves.  [load_in_pattern P m i] is what server i
   sends (and receives) per element of the pattern's data. *)
Definition leaf (P m i : nat) : bool := (i <=? P - m)%nat.
Definition load_in_pattern (P m i : nat) : Q :=
  if leaf P m i then 1 else Qnat (m + P - 2) / Qnat m.

(* The share of the data that pattern m carries, given the load L_i wanted on
   every server i. *)
Definition share (P : nat) (L : nat -> Q) (m : nat) : Q :=
  if (m =? P)%nat
  then (L 1%nat - 1) * Qnat P / Qnat (P - 2)
  else (L (P - m + 1)%nat - L (P - m)%nat) * Qnat m / Qnat (P - 2).

(* f 1 + ... + f k. *)
Definition sum1 (k : nat) (f : nat -> Q) : Q := sumQ k (fun i => f (S i)).

(* Loads that nested rings can carry: 1 <= L_1 <= ... <= L_P, sum 2(P-1). *)
Definition admissible_loads (P : nat) (L : nat -> Q) : Prop :=
  1 <= L 1%nat /\
  (forall i, (1 <= i < P)%nat -> L i <= L (S i)) /\
  sum1 P L == Qnat (2 * (P - 1)).

(* The schedule itself.  Rank r is server r+1, so the ring of pattern m is the
   ranks P-m .. P-1.  [ring_from P m j] lists them once around, starting with the
   j-th; [hops] are the arrows along a list.  An arrow (u, v) leads from u to v. *)
Definition arrow := (rank * rank)%type.

Definition ring_from (P m j : nat) : list rank :=
  map (Nat.add (P - m)) (seq j (m - j) ++ seq 0 j).

Fixpoint hops (l : list rank) : list arrow :=
  match l with
  | u :: ((v :: _) as rest) => (u, v) :: hops rest
  | _ => []
  end.

(* Element e is added up along the first arrows of its route, then the sum is copied
   along the second. *)
Definition along (arrows : list arrow) (e : element) (add : bool) : schedule :=
  map (fun a => Transfer (fst a) (snd a) e add) arrows.
Definition routed (n : nat) (route : element -> list arrow * list arrow) : schedule :=
  flat_map (fun e => along (fst (route e)) e true ++ along (snd (route e)) e false)
           (seq 0 n).

(* One element of pattern m whose owner is the j-th ring rank o: every leaf
   sends its raw value to o; a chain around the ring reduces into o; a chain
   from o carries the result around; o gives it to every leaf. *)
Definition ring_route (P m j : nat) : list arrow * list arrow :=
  let o := (P - m + j)%nat in
  (map (fun v => (v, o)) (seq 0 (P - m)) ++ hops (ring_from P m (S j)),
   hops (ring_from P m j) ++ map (fun v => (o, v)) (seq 0 (P - m))).

(* A plan gives every element its pattern m and its owner's index j in the ring. *)
Definition nested_rings (P : nat) (plan : list (nat * nat)) : schedule :=
  routed (length plan)
    (fun e => let (m, j) := nth e plan (1, 0)%nat in ring_route P m j).

(* ------------------------------------------------------------------------ *)
(* One straggler                                                              *)

(* P ranks of rate B, of which rank 0 runs at B / l. *)
Definition straggler (B l : Q) (r : rank) : Q := if (r =? 0)%nat then B / l else B.
Definition healthy (B : Q) (_ : rank) : Q := B.

(* T-star / T0 in closed form. *)
Definition overhead (P : nat) (l : Q) : Q :=
  Qmax (Qnat P / (Qnat (P - 1) + 1 / l)) (l * Qnat P / Qnat (2 * (P - 1))).
