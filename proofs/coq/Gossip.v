(* The lower bound on the number of transfers.

   Follow one element and look at the moment when the first rank knows everything.
   Until then every other rank has sent; from then on every other rank must still
   receive.  Only transfers between different ranks are counted, because Blocks.v
   merges ranks into blocks and a block may well send to itself. *)

From Coq Require Import List Arith Bool Lia.
From optcc Require Import Model Counting.
Import ListNotations.
Open Scope nat_scope.

(* ------------------------------------------------------------------------ *)
(* Knowledge                                                                  *)

Notation run := (fold_left step).

Lemma step_true K t e r c :
  step K t e r c = true <->
  K e r c = true \/ (e = elt t /\ r = dst t /\ K e (src t) c = true).
Proof.
  unfold step.
  now rewrite orb_true_iff, !andb_true_iff, !Nat.eqb_eq, and_assoc.
Qed.

(* Whatever became known elsewhere has left its source ... *)
Lemma has_left s e r c :
  final s e r c = true -> r <> c ->
  exists t, In t s /\ elt t = e /\ src t = c /\ dst t <> c.
Proof.
  revert r; induction s as [|t s IH] using rev_ind; intros r H Hrc.
  - apply Nat.eqb_eq in H; lia.
  - unfold final in *; rewrite fold_left_app in H; simpl in H.
    apply step_true in H; destruct H as [H | (-> & -> & H)].
    + destruct (IH r H Hrc) as (t' & ? & ?); exists t'; rewrite in_app_iff; auto.
    + destruct (Nat.eq_dec (src t) c) as [E | E].
      * exists t; rewrite in_app_iff; simpl; auto.
      * destruct (IH _ H E) as (t' & ? & ?); exists t'; rewrite in_app_iff; auto.
Qed.

(* ... and whatever became known here has arrived here. *)
Lemma has_arrived s K e r c :
  K e r c = false -> run s K e r c = true ->
  exists t, In t s /\ elt t = e /\ dst t = r /\ src t <> r.
Proof.
  induction s as [|t s IH] using rev_ind; intros H0 H; [simpl in H; congruence|].
  rewrite fold_left_app in H; simpl in H.
  destruct (run s K e r c) eqn:E.
  - destruct (IH H0 eq_refl) as (t' & ? & ?); exists t'; rewrite in_app_iff; auto.
  - apply step_true in H; destruct H as [H | (-> & -> & H)]; [congruence|].
    exists t; rewrite in_app_iff; simpl; intuition congruence.
Qed.

(* There is a first moment at which a property holds. *)
Lemma first_time (A : knowledge -> bool) s K :
  A K = false -> A (run s K) = true ->
  exists s1 t s2, s = s1 ++ t :: s2 /\
    A (run s1 K) = false /\ A (step (run s1 K) t) = true.
Proof.
  revert K; induction s as [|t s IH]; intros K H0 H; simpl in H; [congruence|].
  destruct (A (step K t)) eqn:E.
  - now exists [], t, s.
  - destruct (IH _ E H) as (s1 & t' & s2 & -> & ? & ?).
    now exists (t :: s1), t', s2.
Qed.

(* ------------------------------------------------------------------------ *)
(* The bound, counting only transfers between different ranks                 *)

Definition complete q e (K : knowledge) r : bool :=
  forallb (fun c => K e r c) (seq 0 q).

Lemma complete_spec q e K r :
  complete q e K r = true <-> forall c, c < q -> K e r c = true.
Proof.
  unfold complete; rewrite forallb_forall; split; intros H c Hc.
  - apply H, in_seq; lia.
  - apply in_seq in Hc; apply H; lia.
Qed.

Lemma incomplete_spec q e K r :
  complete q e K r = false -> exists c, c < q /\ K e r c = false.
Proof.
  unfold complete; intros H.
  assert (G : exists c, In c (seq 0 q) /\ K e r c = false).
  { induction (seq 0 q) as [|c l IH]; simpl in H; [easy|].
    destruct (K e r c) eqn:E; [|exists c; simpl; auto].
    destruct (IH H) as (c' & ? & ?); exists c'; simpl; auto. }
  destruct G as (c & Hc & ?); exists c; apply in_seq in Hc; split; [lia|easy].
Qed.

(* The q - 1 ranks other than r. *)
Definition others q r := filter (fun x => negb (x =? r)) (seq 0 q).

Lemma in_others q r x : In x (others q r) <-> x < q /\ x <> r.
Proof.
  unfold others; rewrite filter_In, in_seq, negb_true_iff, Nat.eqb_neq; lia.
Qed.

Lemma NoDup_others q r : NoDup (others q r).
Proof. apply NoDup_filter, seq_NoDup. Qed.

Lemma length_others q r : q - 1 <= length (others q r).
Proof.
  enough (q <= S (length (others q r))) by lia.
  rewrite <- (seq_length q 0) at 1.
  change (S (length (others q r))) with (length (r :: others q r)).
  apply NoDup_incl_length; [apply seq_NoDup|].
  intros x Hx; apply in_seq in Hx; destruct (Nat.eq_dec x r) as [->|N]; simpl; auto.
  right; apply in_others; lia.
Qed.

Definition moves e t : bool := of_element e t && negb (src t =? dst t).

Lemma moves_true e t : elt t = e -> src t <> dst t -> moves e t = true.
Proof.
  intros <- N; unfold moves, of_element.
  now rewrite Nat.eqb_refl, (proj2 (Nat.eqb_neq _ _) N).
Qed.

Lemma gossip_bound q s e :
  (forall r c, r < q -> c < q -> final s e r c = true) ->
  2 * (q - 1) <= count (moves e) s.
Proof.
  intros H; destruct (le_lt_dec q 1) as [|Hq]; [lia|].
  set (A := fun K => existsb (complete q e K) (seq 0 q)).
  assert (A0 : A initial = false).
  { apply not_true_is_false; unfold A; rewrite existsb_exists.
    intros (r & _ & Hr); rewrite complete_spec in Hr.
    generalize (Hr 0 ltac:(lia)) (Hr 1 ltac:(lia)); unfold initial.
    rewrite !Nat.eqb_eq; lia. }
  assert (A1 : A (run s initial) = true).
  { apply existsb_exists; exists 0; split; [apply in_seq; lia|].
    apply complete_spec; intros c Hc; apply H; lia. }
  destruct (first_time A s initial A0 A1) as (s1 & t & s2 & Es & B0 & B1).
  apply existsb_exists in B1; destruct B1 as (r0 & Hr0 & C0).
  apply in_seq in Hr0.
  set (K1 := run s1 initial) in *.
  (* before t nobody is complete; t completes r0 only *)
  assert (B : forall r, r < q -> complete q e K1 r = false).
  { intros r Hr; apply not_true_is_false; intros C.
    enough (A K1 = true) by congruence.
    apply existsb_exists; exists r; split; [apply in_seq; lia | easy]. }
  assert (D : dst t = r0).
  { destruct (incomplete_spec _ _ _ _ (B r0 ltac:(lia))) as (c & Hc & Ec).
    rewrite complete_spec in C0; specialize (C0 c Hc).
    apply step_true in C0; destruct C0 as [C0|(_ & ? & _)]; congruence. }
  subst s.
  replace (s1 ++ t :: s2) with ((s1 ++ [t]) ++ s2) in * by now rewrite <- app_assoc.
  rewrite count_app.
  assert (E1 : final (s1 ++ [t]) = step K1 t).
  { unfold final; now rewrite fold_left_app. }
  (* until then every other rank has sent *)
  assert (S1 : q - 1 <= count (moves e) (s1 ++ [t])).
  { etransitivity; [apply (length_others q r0)|].
    apply (count_labels _ src); [apply NoDup_others|].
    intros c Hc; apply in_others in Hc; destruct Hc as (Hc & N).
    rewrite complete_spec in C0; specialize (C0 c Hc); rewrite <- E1 in C0.
    destruct (has_left _ _ _ _ C0 ltac:(congruence)) as (t' & I & Et & Es & Ed).
    exists t'; repeat split; [easy| |easy].
    apply moves_true; congruence. }
  (* from then on every other rank still receives *)
  assert (S2 : q - 1 <= count (moves e) s2).
  { etransitivity; [apply (length_others q r0)|].
    apply (count_labels _ dst); [apply NoDup_others|].
    intros r Hr; apply in_others in Hr; destruct Hr as (Hr & N).
    destruct (incomplete_spec _ _ _ _ (B r Hr)) as (c & Hc & Ec).
    specialize (H r c Hr Hc); unfold final in H; rewrite fold_left_app in H.
    fold (final (s1 ++ [t])) in H; rewrite E1 in H.
    assert (F : step K1 t e r c = false).
    { apply not_true_is_false; intros F; apply step_true in F.
      destruct F as [F|(_ & F & _)]; congruence. }
    destruct (has_arrived _ _ _ _ _ F H) as (t' & I & Et & Ed & Es').
    exists t'; repeat split; [easy| |easy].
    apply moves_true; congruence. }
  lia.
Qed.
