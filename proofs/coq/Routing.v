(* Schedules built element by element: when they are AllReduces, and how much
   every rank sends.  Used for everything that shows a bound to be reached. *)

From Coq Require Import List Arith Bool Lia.
From optcc Require Import Model Counting Rational.
Import ListNotations.
Open Scope nat_scope.

Definition arrow := (rank * rank)%type.

(* Which ranks hold a given contribution after some arrows. *)
Definition pass (H : rank -> bool) (a : arrow) : rank -> bool :=
  fun r => H r || ((r =? snd a) && H (fst a)).
Definition spread (l : list arrow) (H : rank -> bool) : rank -> bool :=
  fold_left pass l H.

(* Every rank's contribution reaches every rank. *)
Definition connects (P : nat) (l : list arrow) : Prop :=
  (forall a, In a l -> fst a < P /\ snd a < P) /\
  (forall c r, c < P -> r < P -> spread l (fun x => x =? c) r = true).

Lemma spread_app l1 l2 H : spread (l1 ++ l2) H = spread l2 (spread l1 H).
Proof. apply fold_left_app. Qed.

Lemma spread_keeps l H r : H r = true -> spread l H r = true.
Proof.
  revert H; induction l as [|a l IH]; intros H Hr; simpl; [easy|].
  apply IH; unfold pass; now rewrite Hr.
Qed.

Lemma spread_arrow l H u v : In (u, v) l -> H u = true -> spread l H v = true.
Proof.
  intros I Hu; apply in_split in I; destruct I as (l1 & l2 & ->).
  rewrite spread_app; simpl; apply spread_keeps; unfold pass; simpl.
  now rewrite Nat.eqb_refl, (spread_keeps l1 H u Hu), orb_true_r.
Qed.

(* ------------------------------------------------------------------------ *)
(* From arrows to schedules                                                   *)

Definition path (s : schedule) : list arrow := map (fun t => (src t, dst t)) s.

Lemma final_spread s e r c :
  final s e r c = spread (path (filter (of_element e) s)) (fun x => x =? c) r.
Proof.
  revert r; induction s as [|t s IH] using rev_ind; intros r; [reflexivity|].
  unfold final in *; rewrite fold_left_app; simpl; unfold step at 1.
  rewrite filter_app; simpl; unfold of_element at 2.
  rewrite (Nat.eqb_sym e (elt t)); destruct (elt t =? e).
  - unfold path; rewrite map_app, spread_app; simpl; unfold pass; simpl.
    now rewrite !IH.
  - now rewrite app_nil_r, IH, orb_false_r.
Qed.

Section Routed.
Variable route : element -> list arrow.

Definition hop_transfers e := map (fun a : arrow => Transfer (fst a) (snd a) e) (route e).

Lemma routed_S n : routed (S n) route = routed n route ++ hop_transfers n.
Proof.
  unfold routed; rewrite seq_S, flat_map_app; simpl; now rewrite app_nil_r.
Qed.

Lemma filter_hops e e' :
  filter (of_element e) (hop_transfers e') =
  if e' =? e then hop_transfers e' else [].
Proof.
  unfold hop_transfers; induction (route e') as [|a l IH]; simpl.
  - now destruct (e' =? e).
  - rewrite IH; unfold of_element; simpl; now destruct (e' =? e).
Qed.

Lemma routed_element n e :
  path (filter (of_element e) (routed n route)) = if e <? n then route e else [].
Proof.
  induction n as [|n IH]; [reflexivity|].
  rewrite routed_S, filter_app, filter_hops; unfold path in *; rewrite map_app, IH.
  destruct (Nat.ltb_spec e n), (Nat.ltb_spec e (S n)), (Nat.eqb_spec n e);
    try lia; simpl; rewrite ?app_nil_r; try reflexivity.
  subst; unfold hop_transfers; rewrite map_map; simpl.
  rewrite <- (map_id (route e)) at 2; apply map_ext; now intros [].
Qed.

Lemma routed_allreduce P n :
  (forall e, e < n -> connects P (route e)) -> is_allreduce P n (routed n route).
Proof.
  intros H; split.
  - intros t I; apply in_flat_map in I; destruct I as (e & He & I).
    apply in_seq in He; apply in_map_iff in I; destruct I as (a & <- & I).
    now apply (H e ltac:(lia)).
  - intros e r c He Hr Hc; rewrite final_spread, routed_element.
    rewrite (proj2 (Nat.ltb_lt _ _) He); now apply (H e He).
Qed.

(* How often rank r is the tail (or the head) of an arrow. *)
Definition tails (r : rank) (l : list arrow) := length (filter (fun a : arrow => fst a =? r) l).
Definition heads (r : rank) (l : list arrow) := length (filter (fun a : arrow => snd a =? r) l).

Lemma sent_routed n r : sent r (routed n route) = sumN n (fun e => tails r (route e)).
Proof.
  induction n as [|n IH]; [reflexivity|].
  rewrite routed_S, sumN_S, <- IH; unfold sent; rewrite count_app; f_equal.
  unfold count, tails, hop_transfers; induction (route n) as [|a l IHl]; simpl; [easy|].
  destruct (fst a =? r); simpl; now rewrite IHl.
Qed.

Lemma received_routed n r :
  received r (routed n route) = sumN n (fun e => heads r (route e)).
Proof.
  induction n as [|n IH]; [reflexivity|].
  rewrite routed_S, sumN_S, <- IH; unfold received; rewrite count_app; f_equal.
  unfold count, heads, hop_transfers; induction (route n) as [|a l IHl]; simpl; [easy|].
  destruct (snd a =? r); simpl; now rewrite IHl.
Qed.
End Routed.

Lemma tails_app r l1 l2 : tails r (l1 ++ l2) = tails r l1 + tails r l2.
Proof. unfold tails; now rewrite filter_app, app_length. Qed.

Lemma heads_app r l1 l2 : heads r (l1 ++ l2) = heads r l1 + heads r l2.
Proof. unfold heads; now rewrite filter_app, app_length. Qed.

(* ------------------------------------------------------------------------ *)
(* Stars                                                                      *)

Definition gather (X : list rank) c : list arrow := map (fun v => (v, c)) X.
Definition scatter c (X : list rank) : list arrow := map (fun v => (c, v)) X.

Definition occurrences (r : rank) (X : list rank) := length (filter (fun x => x =? r) X).

Lemma occurrences_app r X Y :
  occurrences r (X ++ Y) = occurrences r X + occurrences r Y.
Proof. unfold occurrences; now rewrite filter_app, app_length. Qed.

Lemma occurrences_NoDup r X : NoDup X ->
  occurrences r X = if existsb (fun x => x =? r) X then 1 else 0.
Proof.
  unfold occurrences; induction 1 as [|x X N ND IH]; simpl; [easy|].
  destruct (Nat.eqb_spec x r) as [->|]; simpl; [|exact IH].
  rewrite IH; destruct (existsb (fun x => x =? r) X) eqn:E; [|easy].
  apply existsb_exists in E; destruct E as (y & I & Hy).
  apply Nat.eqb_eq in Hy; now subst.
Qed.

Lemma occurrences_in r X : NoDup X -> In r X -> occurrences r X = 1.
Proof.
  intros ND I; rewrite (occurrences_NoDup _ _ ND).
  replace (existsb (fun x => x =? r) X) with true; [easy|]; symmetry; apply existsb_exists.
  exists r; split; [easy | apply Nat.eqb_refl].
Qed.

Lemma occurrences_notin r X : ~ In r X -> occurrences r X = 0.
Proof.
  unfold occurrences; induction X as [|x X IH]; simpl; [easy|]; intros N.
  destruct (Nat.eqb_spec x r); [tauto | apply IH; tauto].
Qed.

Lemma tails_gather r X c : tails r (gather X c) = occurrences r X.
Proof.
  unfold tails, gather, occurrences; induction X as [|x X IH]; simpl; [easy|].
  destruct (x =? r); simpl; now rewrite IH.
Qed.

Lemma heads_scatter r X c : heads r (scatter c X) = occurrences r X.
Proof.
  unfold heads, scatter, occurrences; induction X as [|x X IH]; simpl; [easy|].
  destruct (x =? r); simpl; now rewrite IH.
Qed.

Lemma heads_gather r X c : heads r (gather X c) = if c =? r then length X else 0.
Proof.
  unfold heads, gather; induction X as [|x X IH]; simpl; [now destruct (c =? r)|].
  destruct (c =? r); simpl; now rewrite IH.
Qed.

Lemma tails_scatter r X c : tails r (scatter c X) = if c =? r then length X else 0.
Proof.
  unfold tails, scatter; induction X as [|x X IH]; simpl; [now destruct (c =? r)|].
  destruct (c =? r); simpl; now rewrite IH.
Qed.
