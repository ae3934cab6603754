(* Nested rings as schedules: they are AllReduces, and the loads in the share
   formula are the real numbers of transfers.

   Element (m, j) has as its owner o the j-th rank of the ring.  Let X be the
   other ring ranks in ring order after o.  Then the reducing chain runs along
   X ++ [o] and the distributing chain along o :: X. *)

From Coq Require Import List Arith Bool Lia FinFun Permutation.
From optcc Require Import Model Routing.
Import ListNotations.
Open Scope nat_scope.

(* ------------------------------------------------------------------------ *)
(* Chains                                                                     *)

Lemma hops_cons u v l : hops (u :: v :: l) = (u, v) :: hops (v :: l).
Proof. reflexivity. Qed.

Lemma spread_chain_end X o H v :
  In v X -> H v = true -> spread (hops (X ++ [o])) H o = true.
Proof.
  revert H v; induction X as [|x X IH]; intros H v I Hv; [easy|].
  destruct X as [|y X].
  - destruct I as [->|[]]; apply (spread_arrow _ _ v o); simpl; auto.
  - change ((x :: y :: X) ++ [o]) with (x :: y :: X ++ [o]); rewrite hops_cons.
    change (spread ((x, y) :: hops (y :: X ++ [o])) H o = true)
      with (spread (hops ((y :: X) ++ [o])) (pass H (x, y)) o = true).
    destruct I as [->|I].
    + apply (IH _ y); [simpl; auto|]; unfold pass; simpl.
      now rewrite Nat.eqb_refl, Hv, orb_true_r.
    + apply (IH _ v I); unfold pass; now rewrite Hv.
Qed.

Lemma spread_chain_start X o H v :
  In v X -> H o = true -> spread (hops (o :: X)) H v = true.
Proof.
  revert o H; induction X as [|x X IH]; intros o H I Ho; [easy|].
  rewrite hops_cons.
  change (spread ((o, x) :: hops (x :: X)) H v = true)
    with (spread (hops (x :: X)) (pass H (o, x)) v = true).
  assert (Hx : pass H (o, x) x = true).
  { unfold pass; simpl; now rewrite Nat.eqb_refl, Ho, orb_true_r. }
  destruct I as [->|I]; [now apply spread_keeps | now apply IH].
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

Theorem ring_connects : connects P (ring_arrows P m j).
Proof.
  unfold ring_arrows; fold owner; rewrite ring_here, ring_next.
  change (map (fun v => (v, owner)) (seq 0 (P - m))) with (gather (seq 0 (P - m)) owner).
  change (map (fun v => (owner, v)) (seq 0 (P - m))) with (scatter owner (seq 0 (P - m))).
  assert (Ho : P - m <= owner < P) by (unfold owner; lia).
  assert (ring : forall v, In v rest \/ v = owner -> v < P).
  { intros v [I | ->]; [apply in_rest in I|]; lia. }
  split.
  - intros a; rewrite !in_app_iff; intros [I|[I|[I|I]]].
    + apply in_map_iff in I; destruct I as (v & <- & I); apply in_seq in I; simpl; lia.
    + apply hops_in in I; rewrite !in_app_iff in I; simpl in I.
      destruct I; split; apply ring; intuition.
    + apply hops_in in I; simpl in I; destruct I; split; apply ring; intuition.
    + apply in_map_iff in I; destruct I as (v & <- & I); apply in_seq in I; simpl; lia.
  - intros c r Hc Hr; rewrite !spread_app.
    set (H1 := spread (gather _ _) _); set (H2 := spread (hops (rest ++ [owner])) H1).
    set (H3 := spread (hops (owner :: rest)) H2).
    assert (O2 : H2 owner = true).
    { destruct (Nat.eq_dec c owner) as [->|Nc].
      { apply spread_keeps, spread_keeps, Nat.eqb_refl. }
      destruct (le_lt_dec (P - m) c) as [Rc|Lc].
      - apply (spread_chain_end _ _ _ c); [apply in_rest; lia|].
        apply spread_keeps, Nat.eqb_refl.
      - apply spread_keeps, (spread_arrow _ _ c owner); [|apply Nat.eqb_refl].
        apply (in_map (fun v => (v, owner))), in_seq; lia. }
    assert (O3 : H3 owner = true) by now apply spread_keeps.
    destruct (Nat.eq_dec r owner) as [->|Nr]; [now apply spread_keeps|].
    destruct (le_lt_dec (P - m) r) as [Rr|Lr].
    + apply spread_keeps, spread_chain_start; [apply in_rest; lia | easy].
    + apply (spread_arrow _ _ owner r); [|easy].
      apply (in_map (fun v => (owner, v))), in_seq; lia.
Qed.

(* Leaves send and receive once. *)
Lemma leaf_counts r : r < P - m ->
  tails r (ring_arrows P m j) = 1 /\ heads r (ring_arrows P m j) = 1.
Proof.
  intros Hr; unfold ring_arrows; fold owner; rewrite ring_here, ring_next.
  change (map (fun v => (v, owner)) (seq 0 (P - m))) with (gather (seq 0 (P - m)) owner).
  change (map (fun v => (owner, v)) (seq 0 (P - m))) with (scatter owner (seq 0 (P - m))).
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
  tails (P - m + i) (ring_arrows P m j) + one (j =? i)
    + one (j =? if S i =? m then 0 else S i) = 2 + (P - m) * one (j =? i).
Proof.
  intros Hi; unfold ring_arrows; fold owner; rewrite ring_here, ring_next.
  change (map (fun v => (v, owner)) (seq 0 (P - m))) with (gather (seq 0 (P - m)) owner).
  change (map (fun v => (owner, v)) (seq 0 (P - m))) with (scatter owner (seq 0 (P - m))).
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
  heads (P - m + i) (ring_arrows P m j) + one (j =? i)
    + one (j =? if i =? 0 then m - 1 else i - 1) = 2 + (P - m) * one (j =? i).
Proof.
  intros Hi; unfold ring_arrows; fold owner; rewrite ring_here, ring_next.
  change (map (fun v => (v, owner)) (seq 0 (P - m))) with (gather (seq 0 (P - m)) owner).
  change (map (fun v => (owner, v)) (seq 0 (P - m))) with (scatter owner (seq 0 (P - m))).
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
