(* Nested rings as schedules: they sum every contribution exactly once, and the loads
   in the share formula are the real numbers of transfers.

   Element (m, j) has as its owner o the j-th rank of the ring.  Let X be the
   other ring ranks in ring order after o.  Then the reducing chain runs along
   X ++ [o] and the distributing chain along o :: X. *)

From Coq Require Import List Arith Bool Lia FinFun Permutation.
From optcc Require Import Model Once Routing.
Import ListNotations.
Open Scope nat_scope.

(* ------------------------------------------------------------------------ *)
(* Chains                                                                     *)

Lemma hops_cons u v l : hops (u :: v :: l) = (u, v) :: hops (v :: l).
Proof. reflexivity. Qed.

(* Added up along a chain, everything arrives at its end ... *)
Lemma chain_adds X o V e : NoDup (X ++ [o]) ->
  result plus (along (hops (X ++ [o])) e true) V e o = V e o + list_sum (map (V e) X).
Proof.
  revert V; induction X as [|x X IH]; intros V ND; [simpl; lia|].
  simpl in ND; apply NoDup_cons_iff in ND; destruct ND as [N ND]; rewrite in_app_iff in N.
  specialize (IH (deliver plus V (Transfer x (hd o X) e true)) ND).
  replace (along (hops ((x :: X) ++ [o])) e true)
    with ([Transfer x (hd o X) e true] ++ along (hops (X ++ [o])) e true) by now destruct X.
  rewrite result_app; simpl; rewrite IH, deliver_here; destruct X as [|y X]; simpl in *.
  - rewrite Nat.eqb_refl; lia.
  - apply NoDup_cons_iff in ND; destruct ND as [Ny _]; rewrite in_app_iff in Ny.
    rewrite deliver_here, Nat.eqb_refl, (map_ext_in _ (V e)).
    + destruct (Nat.eqb_spec o y); [subst; simpl in *; tauto | lia].
    + intros z I; rewrite deliver_here; destruct (Nat.eqb_spec z y); [subst; tauto | easy].
Qed.

(* ... and copied along a chain, what its start holds arrives everywhere. *)
Lemma chain_copies X o V e r :
  V e o = 1 -> V e r = 1 \/ In r X -> result plus (along (hops (o :: X)) e false) V e r = 1.
Proof.
  revert o V; induction X as [|x X IH]; intros o V Ho H; [now destruct H|].
  apply (IH x (deliver plus V (Transfer o x e false))); rewrite deliver_here;
    [now rewrite Nat.eqb_refl|].
  destruct H as [H|[<-|H]]; [left; now destruct (r =? x) | left | auto].
  now rewrite Nat.eqb_refl.
Qed.

Lemma tails_hops r l : tails r (hops l) = occurrences r (removelast l).
Proof.
  induction l as [|u [|v l] IH]; [easy..|]; rewrite hops_cons.
  change (removelast (u :: v :: l)) with ([u] ++ removelast (v :: l)).
  rewrite occurrences_app, <- IH; unfold tails, occurrences; simpl.
  now destruct (u =? r).
Qed.

Lemma heads_hops r l : heads r (hops l) = occurrences r (tl l).
Proof.
  induction l as [|u [|v l] IH]; [easy..|]; rewrite hops_cons; simpl in *.
  unfold heads, occurrences in *; simpl; destruct (v =? r); simpl; now rewrite IH.
Qed.

Lemma hops_in l a : In a (hops l) -> In (fst a) l /\ In (snd a) l.
Proof.
  induction l as [|u [|v l] IH]; [easy..|]; rewrite hops_cons.
  intros [<-|I]; [simpl; auto|]; destruct (IH I); split; now right.
Qed.

(* ------------------------------------------------------------------------ *)
(* The ring                                                                   *)

Section Ring.
Variables (P m j : nat).
Hypothesis Hm : 1 <= m <= P.
Hypothesis Hj : j < m.

Definition owner : rank := P - m + j.
Definition rest : list rank := map (Nat.add (P - m)) (seq (S j) (m - S j) ++ seq 0 j).

Lemma ring_here : ring_from P m j = owner :: rest.
Proof.
  unfold ring_from, rest, owner; replace (m - j) with (S (m - S j)) by lia.
  reflexivity.
Qed.

Lemma ring_next : ring_from P m (S j) = rest ++ [owner].
Proof.
  unfold ring_from, rest, owner; rewrite seq_S, app_assoc, !map_app; reflexivity.
Qed.

Lemma in_rest v : In v rest <-> P - m <= v < P /\ v <> owner.
Proof.
  unfold rest, owner; rewrite in_map_iff; split.
  - intros (i & <- & I); rewrite in_app_iff, !in_seq in I; lia.
  - intros (I & N); exists (v - (P - m)); rewrite in_app_iff, !in_seq; lia.
Qed.

Lemma NoDup_rest : NoDup rest.
Proof.
  unfold rest; apply Injective_map_NoDup; [intros x y; lia|].
  (* 0 .. m-1 without j *)
  assert (N : NoDup (seq 0 j ++ seq j (m - j))).
  { rewrite <- seq_app; apply seq_NoDup. }
  replace (m - j) with (S (m - S j)) in N by lia; simpl in N.
  apply NoDup_remove_1 in N.
  exact (Permutation_NoDup (Permutation_app_comm _ _) N).
Qed.

(* The route in terms of owner and rest. *)
Lemma route_is : ring_route P m j =
  (gather (seq 0 (P - m)) owner ++ hops (rest ++ [owner]),
   hops (owner :: rest) ++ scatter owner (seq 0 (P - m))).
Proof. now rewrite <- ring_here, <- ring_next. Qed.

Theorem ring_once : carries_once P (ring_route P m j).
Proof.
  rewrite route_is.
  assert (Ho : P - m <= owner < P) by (unfold owner; lia).
  assert (ring : forall v, In v rest \/ v = owner -> v < P).
  { intros v [I | ->]; [apply in_rest in I|]; lia. }
  split.
  - intros a; cbn [fst snd]; rewrite !in_app_iff; intros [[I|I]|[I|I]].
    + apply in_map_iff in I; destruct I as (v & <- & I); apply in_seq in I; simpl; lia.
    + apply hops_in in I; rewrite !in_app_iff in I; simpl in I.
      destruct I; split; apply ring; intuition.
    + apply hops_in in I; simpl in I; destruct I; split; apply ring; intuition.
    + apply in_map_iff in I; destruct I as (v & <- & I); apply in_seq in I; simpl; lia.
  - intros e r c Hr Hc; unfold times_held, travels; cbn [fst snd].
    rewrite !along_app, !result_app; set (V := result plus _ (one_at c)).
    (* the leaves, the others of the ring, and the owner itself: each contribution once *)
    assert (Vr : forall v, V e v
      = one_at c e v + if v =? owner then occurrences c (seq 0 (P - m)) else 0).
    { intros v; unfold V; rewrite gather_adds, sum_one_at; [easy|]; rewrite in_seq; lia. }
    clearbody V; set (W := result plus _ V).
    assert (Wo : W e owner = 1).
    { assert (NR : ~ In owner rest) by (rewrite in_rest; lia).
      assert (ND : NoDup (rest ++ [owner])).
      { apply (Permutation_NoDup (Permutation_cons_append rest owner)).
        now constructor; [|apply NoDup_rest]. }
      unfold W; rewrite chain_adds by exact ND.
      rewrite (map_ext_in _ (one_at c e)), sum_one_at, Vr, Nat.eqb_refl.
      - unfold one_at; destruct (Nat.eqb_spec owner c) as [<-|N].
        + rewrite !occurrences_notin; [easy | easy | rewrite in_seq; lia].
        + destruct (le_lt_dec (P - m) c).
          * rewrite occurrences_notin, occurrences_in; [easy | apply NoDup_rest | |];
              rewrite ?in_rest, ?in_seq; lia.
          * rewrite occurrences_in, occurrences_notin; [easy | | apply seq_NoDup |];
              rewrite ?in_rest, ?in_seq; lia.
      - intros v I; rewrite Vr; destruct (Nat.eqb_spec v owner); [now subst | lia]. }
    clearbody W; apply scatter_copies; [now apply chain_copies; auto|].
    destruct (le_lt_dec (P - m) r); [left; apply chain_copies; [easy|] | right; apply in_seq; lia].
    destruct (Nat.eq_dec r owner) as [->|]; [now left | right; apply in_rest; lia].
Qed.

Definition ring_arrows : list arrow := fst (ring_route P m j) ++ snd (ring_route P m j).

(* Leaves send and receive once. *)
Lemma leaf_counts r : r < P - m ->
  tails r ring_arrows = 1 /\ heads r ring_arrows = 1.
Proof.
  intros Hr; unfold ring_arrows; rewrite route_is; cbn [fst snd].
  rewrite !tails_app, !heads_app, !tails_hops, !heads_hops, tails_gather, heads_gather,
    tails_scatter, heads_scatter, removelast_last.
  assert (No : owner <> r) by (unfold owner; lia).
  rewrite (proj2 (Nat.eqb_neq _ _) No).
  assert (N : ~ In r rest) by (rewrite in_rest; lia).
  rewrite (occurrences_in r (seq 0 (P - m))) by (try apply seq_NoDup; apply in_seq; lia).
  rewrite !occurrences_notin; auto.
  - simpl; intros I; apply N.
    destruct rest; simpl in I; [easy|]; apply in_app_iff in I; simpl in *; tauto.
  - intros I; assert (K : In r (owner :: rest)).
    { rewrite (app_removelast_last owner (l := owner :: rest)) by easy.
      apply in_app_iff; auto. }
    simpl in K; tauto.
Qed.

Definition one (b : bool) : nat := if b then 1 else 0.

Lemma rest_once i : i < m -> occurrences (P - m + i) rest + one (j =? i) = 1.
Proof.
  intros Hi; destruct (Nat.eqb_spec j i) as [<-|N]; simpl.
  - rewrite occurrences_notin; [easy|]; rewrite in_rest; unfold owner; lia.
  - rewrite occurrences_in; [easy | apply NoDup_rest|].
    apply in_rest; unfold owner; lia.
Qed.

Lemma owner_is i : (owner =? P - m + i) = (j =? i).
Proof. unfold owner; apply eq_true_iff_eq; rewrite !Nat.eqb_eq; lia. Qed.

(* Ring ranks: everything but the end of each chain, and the owner's extra. *)
Lemma ring_tails i : i < m ->
  tails (P - m + i) ring_arrows + one (j =? i)
    + one (j =? if S i =? m then 0 else S i) = 2 + (P - m) * one (j =? i).
Proof.
  intros Hi; unfold ring_arrows; rewrite route_is; cbn [fst snd].
  set (r := P - m + i).
  rewrite !tails_app, !tails_hops, tails_gather, tails_scatter, removelast_last, seq_length.
  rewrite (occurrences_notin r (seq 0 (P - m))) by (rewrite in_seq; unfold r; lia).
  (* the whole ring holds r once; its last rank does not send on *)
  pose proof (rest_once i Hi) as E1; fold r in E1.
  assert (E2 : occurrences r (removelast (owner :: rest)) + one (last (owner :: rest) 0 =? r)
               = occurrences r rest + one (owner =? r)).
  { transitivity (occurrences r (owner :: rest)).
    - rewrite (app_removelast_last 0 (l := owner :: rest)) at 3 by easy.
      rewrite occurrences_app; unfold occurrences at 3; simpl.
      now destruct (_ =? r).
    - change (owner :: rest) with ([owner] ++ rest); rewrite occurrences_app.
      unfold occurrences at 1; simpl; destruct (owner =? r); simpl; lia. }
  assert (E3 : (last (owner :: rest) 0 =? r) = (j =? if S i =? m then 0 else S i)).
  { assert (E : last (owner :: rest) 0 = P - m + (if j =? 0 then m - 1 else j - 1)).
    { rewrite <- ring_here; unfold ring_from; destruct j as [|j'].
      - simpl; rewrite Nat.sub_0_r, app_nil_r.
        replace (seq 0 m) with (seq 0 (S (m - 1))) by (f_equal; lia).
        rewrite seq_S, map_app; apply last_last.
      - rewrite (seq_S j'), app_assoc, map_app; simpl; rewrite Nat.sub_0_r; apply last_last. }
    rewrite E; unfold r; apply eq_true_iff_eq; rewrite !Nat.eqb_eq.
    destruct (Nat.eqb_spec j 0), (Nat.eqb_spec (S i) m); lia. }
  pose proof (owner_is i) as E4; fold r in E4.
  rewrite E3, E4 in E2; rewrite E4; unfold one in *.
  destruct (j =? i); simpl in *; lia.
Qed.

Lemma ring_heads i : i < m ->
  heads (P - m + i) ring_arrows + one (j =? i)
    + one (j =? if i =? 0 then m - 1 else i - 1) = 2 + (P - m) * one (j =? i).
Proof.
  intros Hi; unfold ring_arrows; rewrite route_is; cbn [fst snd].
  set (r := P - m + i).
  rewrite !heads_app, !heads_hops, heads_gather, heads_scatter, seq_length.
  rewrite (occurrences_notin r (seq 0 (P - m))) by (rewrite in_seq; unfold r; lia).
  pose proof (rest_once i Hi) as E1; fold r in E1.
  assert (E2 : occurrences r (tl (rest ++ [owner])) + one (hd 0 (rest ++ [owner]) =? r)
               = occurrences r rest + one (owner =? r)).
  { transitivity (occurrences r (rest ++ [owner])).
    - destruct (rest ++ [owner]) as [|x l] eqn:E; [now destruct rest|]; simpl.
      change (x :: l) with ([x] ++ l); rewrite occurrences_app.
      unfold occurrences at 2; simpl; destruct (x =? r); simpl; lia.
    - rewrite occurrences_app; unfold occurrences at 2; simpl.
      destruct (owner =? r); simpl; lia. }
  assert (E3 : (hd 0 (rest ++ [owner]) =? r) = (j =? if i =? 0 then m - 1 else i - 1)).
  { assert (E : hd 0 (rest ++ [owner]) = P - m + (if S j =? m then 0 else S j)).
    { rewrite <- ring_next; unfold ring_from.
      destruct (Nat.eqb_spec (S j) m) as [<-|N].
      - rewrite Nat.sub_diag; reflexivity.
      - replace (m - S j) with (S (m - S (S j))) by lia; reflexivity. }
    rewrite E; unfold r; apply eq_true_iff_eq; rewrite !Nat.eqb_eq.
    destruct (Nat.eqb_spec (S j) m), (Nat.eqb_spec i 0); lia. }
  pose proof (owner_is i) as E4; fold r in E4.
  rewrite E3, E4 in E2; rewrite E4; simpl; unfold one in *.
  destruct (j =? i); simpl in *; lia.
Qed.
End Ring.
