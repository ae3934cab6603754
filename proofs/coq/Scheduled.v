(* A schedule that sums every contribution exactly once is a protocol for vectors of
   elements.  So protocols that may code reach [best_time], which none of them beats. *)

From Coq Require Import List Arith Bool QArith Lia.
From optcc Require Import Model Once Counting Optimal Protocols Received CodedTime
  Gather Powers.
Import ListNotations.
Open Scope nat_scope.

Section Scheduled.
Variables (A : group) (n : nat).

Notation X := (carrier (power A n)).
Notation message := (@message X (carrier A)).
Notation own := (own (zero (power A n))).
Notation post := (post (zero (power A n))).
Notation run := (result (add A)).

(* What rank r holds after schedule s, given what it held at first and the contents of
   the transfers to it. *)
Fixpoint replay (r : rank) (s : schedule) (h : element -> carrier A) (got : list (carrier A))
    : element -> carrier A :=
  match s with
  | [] => h
  | t :: s =>
      if dst t =? r
      then match got with
           | [] => h
           | v :: got =>
               replay r s (fun e => if e =? elt t then if adds t then add A (h e) v else v
                                    else h e) got
           end
      else replay r s h got
  end.

(* The message that a transfer is, if [before] came before it. *)
Definition sends (before : schedule) (t : transfer) : message :=
  Message (src t) (dst t) (fun a got => replay (src t) before (fun e => part A n e a) got (elt t)).

Fixpoint messages (before s : schedule) : list message :=
  match s with [] => [] | t :: s => sends before t :: messages (before ++ [t]) s end.

Definition arrivals (r : rank) (s : schedule) : nat := count (fun t => dst t =? r) s.

Lemma replay_other r t s : dst t <> r -> forall h got,
  replay r (s ++ [t]) h got = replay r s h got.
Proof.
  intros N; induction s as [|u s IH]; intros h got; simpl.
  - now rewrite (proj2 (Nat.eqb_neq _ _) N).
  - destruct (dst u =? r); [|apply IH]; destruct got; [easy | apply IH].
Qed.

Lemma replay_next r t v s : dst t = r -> forall h got, length got = arrivals r s -> forall e,
  replay r (s ++ [t]) h (got ++ [v]) e
  = if e =? elt t then if adds t then add A (replay r s h got e) v else v
    else replay r s h got e.
Proof.
  intros E; induction s as [|u s IH]; intros h got L e; unfold arrivals, count in *; simpl in *.
  - destruct got; [|easy]; simpl; now rewrite E, Nat.eqb_refl.
  - destruct (dst u =? r); [|now apply IH].
    destruct got as [|w got]; [easy|]; simpl in *; apply IH; lia.
Qed.

(* What ranks hold is what the schedule says. *)
Lemma replayed x s : forall before views,
  (forall r, length (views r) = arrivals r before) ->
  (forall r e, replay r before (fun e => part A n e (own x r)) (views r) e
               = run before (fun e r => part A n e (own x r)) e r) ->
  let after := fold_left (post x) (messages before s) views in
  forall r e, replay r (before ++ s) (fun e => part A n e (own x r)) (after r) e
              = run (before ++ s) (fun e r => part A n e (own x r)) e r.
Proof.
  induction s as [|t s IH]; intros before views L R; simpl; [now rewrite app_nil_r|].
  intros r e; change (t :: s) with ([t] ++ s); rewrite app_assoc; revert r e.
  assert (C : content (zero (power A n)) x views (sends before t)
              = run before (fun e r => part A n e (own x r)) (elt t) (src t)) by apply R.
  apply IH; clear IH.
  - intros r; unfold Protocols.post, arrivals; rewrite count_app; simpl to.
    assert (one : count (fun u => dst u =? r) [t] = if r =? dst t then 1 else 0).
    { unfold count; simpl; rewrite Nat.eqb_sym; now destruct (r =? dst t). }
    rewrite one.
    destruct (r =? dst t); [rewrite app_length|]; rewrite L; unfold arrivals; simpl; lia.
  - intros r e; rewrite result_app; simpl; unfold deliver.
    unfold Protocols.post; rewrite C; simpl to.
    destruct (Nat.eqb_spec r (dst t)) as [->|N].
    + rewrite replay_next, !R by auto; rewrite andb_true_r.
      destruct (Nat.eqb_spec e (elt t)) as [->|]; easy.
    + rewrite andb_false_r, replay_other by congruence; apply R.
Qed.

Theorem schedule_sums P s : exactly_once P n s -> sums (power A n) P (messages [] s).
Proof.
  intros good; split.
  - destruct good as [inside _]; generalize (@nil transfer) as before.
    induction s as [|t s IH]; intros before m I; [easy|]; destruct I as [<-|I].
    + apply inside; now left.
    + apply (IH (fun u J => inside u (or_intror J)) _ m I).
  - intros r Hr; exists (fun a got => build A n (replay r s (fun e => part A n e a) got)).
    intros x Ix; apply choices_ranks in Ix; apply build_parts; intros e He.
    assert (laws : commutative_monoid (add A) (zero A)).
    { repeat split; intros; [apply add_assoc | apply add_comm | rewrite add_comm; apply add_zero]. }
    transitivity (run s (fun e r => part A n e (own x r)) e r).
    + apply (replayed x s [] nothing); easy.
    + rewrite (exactly_once_sums _ _ laws P n) by easy; rewrite part_sum.
      unfold sum_of, sum; rewrite <- (map_map (own x) (part A n e)), <- Ix; do 2 f_equal.
      apply (owns (power A n)).
Qed.

(* Each message is one element of the group, from the transfer's source to its goal. *)
Lemma schedule_carried which which' w : (forall before t, which (sends before t) = which' t) ->
  forall s before, carried which (messages before s) (repeat w (length s)) = w * count which' s.
Proof.
  intros E; induction s as [|t s IH]; intros before; [easy|].
  simpl messages; simpl repeat; rewrite carried_cons, E, IH; unfold count; simpl.
  destruct (which' t); simpl; lia.
Qed.

Lemma schedule_takes w cases s : length (elements A) <= 2 ^ w ->
  takes (zero (power A n)) cases (messages [] s) (repeat w (length s)).
Proof.
  intros W; exists (repeat (elements A) (length s)); split.
  - intros x _; unfold said.
    generalize (@nothing (carrier A)) as views; generalize (@nil transfer) as before.
    induction s as [|t s IH]; intros before views; simpl; constructor; [apply each | apply IH].
  - induction s as [|t s IH]; simpl; constructor; auto.
Qed.
End Scheduled.

Open Scope Q_scope.

Theorem coded_bound_reached P out inn :
  (2 <= P)%nat -> positive P out -> positive P inn ->
  exists n G (p : @protocol (carrier G) bool) lengths,
    (0 < n)%nat /\ order G = (2 ^ n)%nat /\ sums G P p /\
    takes (zero G) (inputs G P) p lengths /\
    coded_fits P p lengths (best_time P n out inn) out inn.
Proof.
  intros HP po pi; destruct (lower_bound_attained P out inn HP po pi) as (n & s & Hn & good & fit).
  exists n, (power bit n), (messages bit n [] s), (repeat 1%nat (length s)).
  split; [easy | split; [apply power_order | split; [now apply schedule_sums | split]]].
  - apply schedule_takes; simpl; lia.
  - intros r Hr; destruct (fit r Hr) as [F F'].
    rewrite (schedule_carried bit n _ (fun t => src t =? r)%nat) by easy.
    rewrite (schedule_carried bit n _ (fun t => dst t =? r)%nat) by easy.
    now rewrite !Nat.mul_1_l.
Qed.
