(* Schedules built element by element: when they sum every contribution exactly once,
   and how much every rank sends.  Used for everything that shows a bound to be reached. *)

From Coq Require Import List Arith Bool Lia.
From optcc Require Import Model Once Counting Rational.
Import ListNotations.
Open Scope nat_scope.

(* ------------------------------------------------------------------------ *)
(* One element                                                                *)

(* Its transfers, and when they are right. *)
Definition travels (route : list arrow * list arrow) (e : element) : schedule :=
  along (fst route) e true ++ along (snd route) e false.

Definition carries_once (P : nat) (route : list arrow * list arrow) : Prop :=
  (forall a, In a (fst route ++ snd route) -> fst a < P /\ snd a < P) /\
  (forall e r c, r < P -> c < P -> times_held (travels route e) e r c = 1).

Lemma along_app l1 l2 e b : along (l1 ++ l2) e b = along l1 e b ++ along l2 e b.
Proof. apply map_app. Qed.

Lemma deliver_here V u v e b r :
  deliver plus V (Transfer u v e b) e r
  = if r =? v then if b then V e r + V e u else V e u else V e r.
Proof. unfold deliver; simpl; now rewrite Nat.eqb_refl. Qed.

Lemma result_element s V e r :
  result plus s V e r = result plus (filter (of_element e) s) V e r.
Proof.
  revert r; induction s as [|t s IH] using rev_ind; intros r; [reflexivity|].
  rewrite filter_app, !result_app; simpl; unfold of_element at 1, deliver at 1.
  rewrite (Nat.eqb_sym e), !IH; destruct (elt t =? e) eqn:E; simpl; [|easy].
  unfold deliver; now rewrite (Nat.eqb_sym e), E.
Qed.

(* How often rank r is the tail (or the head) of an arrow. *)
Definition tails (r : rank) (l : list arrow) := length (filter (fun a : arrow => fst a =? r) l).
Definition heads (r : rank) (l : list arrow) := length (filter (fun a : arrow => snd a =? r) l).

Lemma tails_app r l1 l2 : tails r (l1 ++ l2) = tails r l1 + tails r l2.
Proof. unfold tails; now rewrite filter_app, app_length. Qed.

Lemma heads_app r l1 l2 : heads r (l1 ++ l2) = heads r l1 + heads r l2.
Proof. unfold heads; now rewrite filter_app, app_length. Qed.

Lemma tails_along r l e b : count (fun t => src t =? r) (along l e b) = tails r l.
Proof.
  unfold count, tails, along; induction l as [|a l IH]; simpl; [easy|].
  destruct (fst a =? r); simpl; now rewrite IH.
Qed.

Lemma heads_along r l e b : count (fun t => dst t =? r) (along l e b) = heads r l.
Proof.
  unfold count, heads, along; induction l as [|a l IH]; simpl; [easy|].
  destruct (snd a =? r); simpl; now rewrite IH.
Qed.

(* ------------------------------------------------------------------------ *)
(* All elements                                                               *)

Section Routed.
Variable route : element -> list arrow * list arrow.

Lemma routed_S n : routed (S n) route = routed n route ++ travels (route n) n.
Proof.
  unfold routed; rewrite seq_S, flat_map_app; simpl; now rewrite app_nil_r.
Qed.

Lemma filter_along e e' l b :
  filter (of_element e) (along l e' b) = if e' =? e then along l e' b else [].
Proof.
  unfold along; induction l as [|a l IH]; simpl; [now destruct (e' =? e)|].
  rewrite IH; unfold of_element; simpl; now destruct (e' =? e).
Qed.

Lemma routed_element n e :
  filter (of_element e) (routed n route) = if e <? n then travels (route e) e else [].
Proof.
  induction n as [|n IH]; [reflexivity|].
  rewrite routed_S, filter_app, IH; unfold travels; rewrite filter_app, !filter_along.
  destruct (Nat.ltb_spec e n), (Nat.ltb_spec e (S n)), (Nat.eqb_spec n e);
    try lia; subst; now rewrite ?app_nil_r.
Qed.

Lemma routed_once P n :
  (forall e, e < n -> carries_once P (route e)) -> exactly_once P n (routed n route).
Proof.
  intros H; split.
  - intros t I; apply in_flat_map in I; destruct I as (e & He & I).
    apply in_seq in He; unfold along in I.
    apply in_app_iff in I; rewrite !in_map_iff in I.
    destruct (H e ltac:(lia)) as [inside _].
    destruct I as [(a & <- & I)|(a & <- & I)]; apply (inside a), in_app_iff; auto.
  - intros e r c He Hr Hc; unfold times_held.
    rewrite result_element, routed_element, (proj2 (Nat.ltb_lt _ _) He).
    now apply (H e He).
Qed.

Definition arrows e := fst (route e) ++ snd (route e).

Lemma sent_routed n r : sent r (routed n route) = sumN n (fun e => tails r (arrows e)).
Proof.
  induction n as [|n IH]; [reflexivity|].
  rewrite routed_S, sumN_S, <- IH; unfold sent, travels, arrows.
  now rewrite !count_app, !tails_along, tails_app.
Qed.

Lemma received_routed n r :
  received r (routed n route) = sumN n (fun e => heads r (arrows e)).
Proof.
  induction n as [|n IH]; [reflexivity|].
  rewrite routed_S, sumN_S, <- IH; unfold received, travels, arrows.
  now rewrite !count_app, !heads_along, heads_app.
Qed.
End Routed.

(* ------------------------------------------------------------------------ *)
(* Stars                                                                      *)

Definition gather (X : list rank) c : list arrow := map (fun v => (v, c)) X.
Definition scatter c (X : list rank) : list arrow := map (fun v => (c, v)) X.

Lemma gather_adds X c V e r : ~ In c X ->
  result plus (along (gather X c) e true) V e r
  = V e r + if r =? c then list_sum (map (V e) X) else 0.
Proof.
  revert V; induction X as [|x X IH]; intros V N; simpl in N.
  - simpl; destruct (r =? c); lia.
  - etransitivity; [apply (IH (deliver plus V (Transfer x c e true))); tauto|]; simpl.
    rewrite deliver_here, (map_ext_in _ (V e)); [destruct (r =? c); lia|].
    intros y I; rewrite deliver_here; destruct (Nat.eqb_spec y c); [subst; tauto | easy].
Qed.

Lemma scatter_copies c X V e r :
  V e c = 1 -> V e r = 1 \/ In r X -> result plus (along (scatter c X) e false) V e r = 1.
Proof.
  revert V; induction X as [|x X IH]; intros V Hc H; [now destruct H|].
  apply (IH (deliver plus V (Transfer c x e false))); rewrite deliver_here;
    [now destruct (c =? x)|].
  destruct H as [H|[<-|H]]; [left; now destruct (r =? x) | left | auto].
  now rewrite Nat.eqb_refl.
Qed.

Definition occurrences (r : rank) (X : list rank) := length (filter (fun x => x =? r) X).

Lemma occurrences_app r X Y :
  occurrences r (X ++ Y) = occurrences r X + occurrences r Y.
Proof. unfold occurrences; now rewrite filter_app, app_length. Qed.

Lemma sum_one_at c e X : list_sum (map (one_at c e) X) = occurrences c X.
Proof.
  unfold occurrences, one_at; induction X as [|x X IH]; simpl; [easy|].
  rewrite IH; now destruct (x =? c).
Qed.

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
