(* Protocols: the definitions that the headlines on coded protocols use, and nothing
   else.  Like Model.v, this file says WHAT is claimed.

   A message may be any function of what its sender has.  So it may mix elements,
   compress, or depend on what was received before. *)

From Coq Require Import List Arith Bool QArith.
From optcc Require Import Model.
Import ListNotations.
Open Scope nat_scope.

(* ------------------------------------------------------------------------ *)
(* Values that can be told apart, and how many of them there are              *)

Class Eq (A : Type) := eq_dec : forall a b : A, {a = b} + {a <> b}.
Global Instance Eq_nat : Eq nat := Nat.eq_dec.
Global Instance Eq_bool : Eq bool := bool_dec.
Global Instance Eq_list {A} `{Eq A} : Eq (list A) := list_eq_dec eq_dec.
Global Instance Eq_prod {A B} `{Eq A} `{Eq B} : Eq (A * B).
Proof. unfold Eq; decide equality; apply eq_dec. Defined.

Global Instance Eq_option {A} `{Eq A} : Eq (option A).
Proof. unfold Eq; decide equality; apply eq_dec. Defined.

(* The different values of f on a list. *)
Definition different {W U} `{Eq U} (f : W -> U) (l : list W) : list U :=
  nodup eq_dec (map f l).

(* f w1 * f w2 * ... *)
Definition prod {W} (f : W -> nat) (l : list W) : nat :=
  fold_right (fun w => Nat.mul (f w)) 1 l.

(* l: equally likely cases.  The number of cases that f does not tell apart from w, and
   the product of these numbers over all cases: 2 ^ (|l| H(case | f)), so that
   |l| ^ |l| / ignorance f l = 2 ^ (|l| H(f)).  H(f) is the entropy of f in bits. *)
Definition alike {W U} `{Eq U} (f : W -> U) (l : list W) (w : W) : nat :=
  length (filter (fun v => if eq_dec (f v) (f w) then true else false) l).
Definition ignorance {W U} `{Eq U} (f : W -> U) (l : list W) : nat :=
  prod (alike f l) l.

(* ------------------------------------------------------------------------ *)
(* What is to be summed: elements of a finite abelian group                   *)

Record group := Group {
  carrier : Type;
  told_apart : Eq carrier;
  add : carrier -> carrier -> carrier;
  zero : carrier;
  neg : carrier -> carrier;
  add_assoc : forall a b c, add a (add b c) = add (add a b) c;
  add_comm : forall a b, add a b = add b a;
  add_zero : forall a, add a zero = a;
  add_neg : forall a, add a (neg a) = zero;
  elements : list carrier;
  each : forall a, In a elements;
  once : NoDup elements;
}.
Global Existing Instance told_apart.

Definition order (G : group) : nat := length (elements G).
Definition sum (G : group) (x : list (carrier G)) : carrier G := fold_right (add G) (zero G) x.

(* All ways to give each of P ranks an input from A, rank 0's first. *)
Fixpoint choices {X} (A : list X) (P : nat) : list (list X) :=
  match P with
  | 0 => [[]]
  | S P => flat_map (fun a => map (cons a) (choices A P)) A
  end.
Definition inputs (G : group) (P : nat) : list (list (carrier G)) := choices (elements G) P.

(* ------------------------------------------------------------------------ *)
(* Protocols in a fixed order                                                 *)

Section Protocols.
Context {X V : Type}.
(* X: inputs, V: contents of messages.  [none] is the input of a rank that does not
   exist; no headline depends on it. *)
Variable none : X.

Definition own (x : list X) (r : rank) : X := nth r x none.

(* What a message says is a function of its sender's input and of the contents that
   the sender has received, in order. *)
Record message := Message { from : rank; to : rank; says : X -> list V -> V }.
Definition protocol := list message.

(* What every rank has received. *)
Definition views := rank -> list V.
Definition nothing : views := fun _ => [].
Definition content (x : list X) (s : views) (m : message) : V :=
  says m (own x (from m)) (s (from m)).
Definition post (x : list X) (s : views) (m : message) : views :=
  fun r => if r =? to m then s r ++ [content x s m] else s r.
Definition inbox (x : list X) (p : protocol) : views :=
  fold_left (post x) p nothing.

(* The contents of the messages of p, in order, if s was received before. *)
Fixpoint contents (x : list X) (s : views) (p : protocol) : list V :=
  match p with
  | [] => []
  | m :: p => content x s m :: contents x (post x s m) p
  end.
Definition said (x : list X) (p : protocol) : list V := contents x nothing p.

(* All messages are between the P ranks, and in the end every rank can tell the result
   f from its input and from what it has received, whatever the inputs. *)
Definition computes {Y} (P : nat) (cases : list (list X)) (f : list X -> Y)
    (p : protocol) : Prop :=
  (forall m, In m p -> from m < P /\ to m < P) /\
  (forall r, r < P -> exists output : X -> list V -> Y,
     forall x, In x cases -> output (own x r) (inbox x p r) = f x).

(* What message t of p says. *)
Definition message_at (p : protocol) (t : nat) (x : list X) : option V :=
  nth_error (said x p) t.

(* The contents of each message of p are taken from its alphabet. *)
Definition in_alphabets (cases : list (list X)) (p : protocol)
    (alphabets : list (list V)) : Prop :=
  forall x, In x cases -> Forall2 (@In V) (said x p) alphabets.

(* A message between ranks of different blocks. *)
Definition passes (block : rank -> nat) (m : message) : bool :=
  negb (block (from m) =? block (to m)).

(* The numbers of those messages that are [which], and of those between blocks. *)
Definition numbered (which : message -> bool) (p : protocol) : list nat :=
  map snd (filter (fun mt => which (fst mt)) (combine p (seq 0 (length p)))).
Definition passing (block : rank -> nat) (p : protocol) : list nat := numbered (passes block) p.

(* A message from outside a set of ranks to one of them; one with an end in the set. *)
Definition enters (inside : rank -> bool) (m : message) : bool :=
  negb (inside (from m)) && inside (to m).
Definition touches (inside : rank -> bool) (m : message) : bool :=
  inside (from m) || inside (to m).

(* What one who knows the result f, and what the first t messages say, does not know of
   the inputs: 2 ^ (|cases| H(inputs | f, first t messages)).  So unknown t over
   unknown (t+1) is 2 ^ (|cases| g), where g is H(message t | f, those before). *)
Definition unknown {Y} `{Eq V} `{Eq Y} (cases : list (list X)) (f : list X -> Y)
    (p : protocol) (t : nat) : nat :=
  ignorance (fun x => (f x, firstn t (said x p))) cases.
End Protocols.

(* An AllReduce of the sum. *)
Definition sums {V} (G : group) (P : nat) (p : @protocol (carrier G) V) : Prop :=
  computes (zero G) P (inputs G P) (sum G) p.

(* ------------------------------------------------------------------------ *)
(* Protocols that decide on the way who speaks next                           *)

(* A tree: what was sent so far is the way to a node, and there a message goes from k
   to j.  It may depend on its sender's input and on all that was sent so far, also
   between others; so may the choice of k and j.  No real protocol has more.  A rank that
   may stay silent has a node where one of the things it may say is nothing, [] below. *)
Inductive tree {X V : Type} :=
  | Stop
  | Say (k j : rank) (says : X -> V) (next : V -> tree).
Arguments tree : clear implicits.

Section Trees.
Context {X V : Type}.
Variable none : X.

(* What rank r receives, in order.  It does not learn when, nor what others say. *)
Fixpoint heard (r : rank) (p : tree X V) (x : list X) : list V :=
  match p with
  | Stop => []
  | Say k j says next =>
      let m := says (own none x k) in
      if r =? j then m :: heard r (next m) x else heard r (next m) x
  end.

(* All messages are between two different ones of the P ranks. *)
Fixpoint between (P : nat) (p : tree X V) : Prop :=
  match p with
  | Stop => True
  | Say k j _ next => k < P /\ j < P /\ k <> j /\ forall v, between P (next v)
  end.

Definition tree_computes {Y} (P : nat) (cases : list (list X)) (f : list X -> Y)
    (p : tree X V) : Prop :=
  between P p /\
  (forall r, r < P -> exists output : X -> list V -> Y,
     forall x, In x cases -> output (own none x r) (heard r p x) = f x).
End Trees.

Definition tree_sums {V} (G : group) (P : nat) (p : tree (carrier G) V) : Prop :=
  tree_computes (zero G) P (inputs G P) (sum G) p.

(* ------------------------------------------------------------------------ *)
(* Messages of varying length: strings of bits                                *)

Definition bits := list bool.
Definition prefix (a b : bits) : Prop := exists c, b = a ++ c.

(* As far as its receiver can tell, no content a message may have is the beginning of
   another: where the receiver has the same input and has received the same. *)
Definition prefix_free {X} (none : X) (cases : list (list X)) (p : @protocol X bits) : Prop :=
  forall x y before m after, In x cases -> In y cases -> p = before ++ m :: after ->
    let s := inbox none x before in
    let t := inbox none y before in
    own none x (to m) = own none y (to m) -> s (to m) = t (to m) ->
    prefix (content none x s m) (content none y t m) ->
    content none x s m = content none y t m.

(* Bits sent. *)
Definition bits_sent {X} (none : X) (p : @protocol X bits) (x : list X) : nat :=
  length (concat (said none x p)).

(* Those sent from one block to another. *)
Definition bits_passing {X} (none : X) (block : rank -> nat) (p : @protocol X bits)
    (x : list X) : nat :=
  length (concat (map snd (filter (fun mc => passes block (fst mc)) (combine p (said none x p))))).

(* In a tree: a rank can tell from its input and from the bits that it receives, one
   after the other, where each message ends, and when it has received all. *)
Definition tree_prefix_free {X} (none : X) (P : nat) (cases : list (list X))
    (p : tree X bits) : Prop :=
  forall r x y, r < P -> In x cases -> In y cases -> own none x r = own none y r ->
    prefix (concat (heard none r p x)) (concat (heard none r p y)) ->
    heard none r p x = heard none r p y.

(* Bits received, by all ranks. *)
Definition tree_bits {X} (none : X) (P : nat) (p : tree X bits) (x : list X) : nat :=
  list_sum (map (fun r => length (concat (heard none r p x))) (seq 0 P)).

(* ------------------------------------------------------------------------ *)
(* Time                                                                       *)

(* Each message of p takes the bits that [lengths] says: what it says is one of
   2 ^ length things. *)
Definition takes {X V} (none : X) (cases : list (list X)) (p : @protocol X V)
    (lengths : list nat) : Prop :=
  exists alphabets, in_alphabets none cases p alphabets /\
    Forall2 (fun alphabet bits => length alphabet <= 2 ^ bits) alphabets lengths.

(* The bits of those messages that are [which]. *)
Definition carried {X V} (which : @message X V -> bool) (p : @protocol X V)
    (lengths : list nat) : nat :=
  list_sum (map snd (filter (fun ml => which (fst ml)) (combine p lengths))).

Open Scope Q_scope.

(* Within T seconds rank r sends at most T * out r bits and receives T * inn r; and the
   same for what crosses the borders of blocks. *)
Definition coded_fits {X V} (P : nat) (p : @protocol X V) (lengths : list nat) (T : Q)
    (out inn : rank -> Q) : Prop :=
  forall r, (r < P)%nat ->
    Qnat (carried (fun m => from m =? r) p lengths) <= T * out r /\
    Qnat (carried (fun m => to m =? r) p lengths) <= T * inn r.

Definition coded_blocks_fit {X V} (q : nat) (block : rank -> nat) (p : @protocol X V)
    (lengths : list nat) (T : Q) (out inn : nat -> Q) : Prop :=
  forall b, (b < q)%nat ->
    Qnat (carried (fun m => (block (from m) =? b) && passes block m) p lengths) <= T * out b /\
    Qnat (carried (fun m => (block (to m) =? b) && passes block m) p lengths) <= T * inn b.
