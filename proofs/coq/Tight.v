(* The bounds are reached, for any rates, in and out told apart.

   Element e gets two hubs, c = C e and d = D e: everybody sends to c, c hands the
   sum to d, d sends it to everybody else.  Rank c then receives P-1 times and d
   sends P-1 times; every other count is 1.  So over n elements

       sent r     = n + (P-2) #{e | D e = r},
       received r = n + (P-2) #{e | C e = r},

   and the two columns D and C can be filled independently: any loads that are
   at least 1 per element and sum to 2(P-1) can be had. *)

From Coq Require Import List Arith Bool QArith Qminmax Lia Lqa.
From optcc Require Import Model Once Gossip Rational Routing.
Import ListNotations.
Open Scope nat_scope.

Definition two_hubs (P : nat) (c d : rank) : list arrow * list arrow :=
  (gather (others P c) c,
   (if c =? d then [] else [(c, d)]) ++
   scatter d (filter (fun v => negb (v =? c)) (others P d))).

Lemma two_hubs_once P c d : c < P -> d < P -> carries_once P (two_hubs P c d).
Proof.
  intros Hc Hd; split.
  - intros a I; unfold two_hubs, gather, scatter in I; simpl in I; rewrite !in_app_iff in I.
    destruct I as [I|[I|I]].
    + apply in_map_iff in I; destruct I as (v & <- & I); apply in_others in I; simpl; lia.
    + destruct (c =? d); simpl in I; [easy|]; destruct I as [<-|[]]; simpl; lia.
    + apply in_map_iff in I; destruct I as (v & <- & I).
      apply filter_In in I; destruct I as [I _]; apply in_others in I; simpl; lia.
  - intros e r x Hr Hx; unfold times_held, travels, two_hubs; simpl.
    rewrite result_app; set (V := result plus _ (one_at x)).
    assert (Vc : V e c = 1).
    { unfold V; rewrite gather_adds, Nat.eqb_refl, sum_one_at by (rewrite in_others; lia).
      unfold one_at; destruct (Nat.eqb_spec c x) as [->|N].
      - rewrite occurrences_notin; [easy | rewrite in_others; lia].
      - rewrite occurrences_in; [easy | apply NoDup_others | apply in_others; lia]. }
    clearbody V; rewrite along_app, result_app.
    set (W := result plus _ V).
    assert (HW : W e d = 1 /\ W e c = 1); [|destruct HW as [Wd Wc]].
    { unfold W; destruct (Nat.eqb_spec c d) as [<-|N]; simpl; [auto|].
      rewrite !deliver_here, Nat.eqb_refl; now destruct (c =? d). }
    apply scatter_copies; [easy|].
    destruct (Nat.eq_dec r c) as [->|Nc]; [auto|].
    destruct (Nat.eq_dec r d) as [->|Nd]; [auto|].
    right; apply filter_In; rewrite in_others.
    now rewrite (proj2 (Nat.eqb_neq _ _) Nc).
Qed.

(* Exact sizes. *)
Lemma size_others P c : c < P -> length (others P c) = P - 1.
Proof.
  intros Hc; unfold others.
  assert (G : forall k, length (filter (fun x => negb (x =? c)) (seq 0 k))
                        = if c <? k then k - 1 else k).
  { induction k as [|k IH]; [reflexivity|].
    rewrite seq_S, filter_app, app_length, IH; simpl.
    destruct (Nat.ltb_spec c k), (Nat.ltb_spec c (S k)), (Nat.eqb_spec k c); simpl; lia. }
  now rewrite G, (proj2 (Nat.ltb_lt _ _) Hc).
Qed.

Lemma size_others2 P c d : c < P -> d < P -> c <> d ->
  length (filter (fun v => negb (v =? c)) (others P d)) = P - 2.
Proof.
  intros Hc Hd N; unfold others.
  assert (G : forall k, length (filter (fun v => negb (v =? c))
       (filter (fun x => negb (x =? d)) (seq 0 k))) + (if c <? k then 1 else 0) +
       (if d <? k then 1 else 0) = k).
  { induction k as [|k IH]; [reflexivity|].
    rewrite seq_S, !filter_app, app_length; simpl; revert IH.
    destruct (Nat.ltb_spec c k), (Nat.ltb_spec c (S k)), (Nat.ltb_spec d k),
      (Nat.ltb_spec d (S k)), (Nat.eqb_spec k d); simpl;
      try destruct (Nat.eqb_spec k c); simpl; lia. }
  specialize (G P); rewrite !(proj2 (Nat.ltb_lt _ _)) in G by lia; lia.
Qed.

Lemma filter_others P d : filter (fun v => negb (v =? d)) (others P d) = others P d.
Proof.
  unfold others; induction (seq 0 P) as [|x l IH]; simpl; [easy|].
  destruct (x =? d) eqn:E; simpl; [easy|]; now rewrite E, IH; simpl.
Qed.

Lemma two_hubs_tails P c d r : 2 <= P -> c < P -> d < P -> r < P ->
  tails r (fst (two_hubs P c d) ++ snd (two_hubs P c d)) = 1 + (P - 2) * (if d =? r then 1 else 0).
Proof.
  intros HP Hc Hd Hr; unfold two_hubs; simpl; rewrite !tails_app, tails_gather, tails_scatter.
  assert (E : occurrences r (others P c) = if c =? r then 0 else 1).
  { destruct (Nat.eqb_spec c r) as [->|N].
    - apply occurrences_notin; rewrite in_others; lia.
    - apply occurrences_in; [apply NoDup_others | apply in_others; lia]. }
  rewrite E; destruct (Nat.eqb_spec c d) as [<-|N].
  - rewrite filter_others, size_others by easy.
    unfold tails; simpl; destruct (Nat.eqb_spec c r); lia.
  - rewrite size_others2 by easy; unfold tails; simpl.
    destruct (Nat.eqb_spec c r), (Nat.eqb_spec d r); simpl; lia.
Qed.

Lemma two_hubs_heads P c d r : 2 <= P -> c < P -> d < P -> r < P ->
  heads r (fst (two_hubs P c d) ++ snd (two_hubs P c d)) = 1 + (P - 2) * (if c =? r then 1 else 0).
Proof.
  intros HP Hc Hd Hr; unfold two_hubs; simpl; rewrite !heads_app, heads_gather, heads_scatter.
  rewrite size_others by easy.
  assert (ND : NoDup (filter (fun v => negb (v =? c)) (others P d))).
  { apply NoDup_filter, NoDup_others. }
  assert (E : occurrences r (filter (fun v => negb (v =? c)) (others P d))
              = if (r =? c) || (r =? d) then 0 else 1).
  { destruct (Nat.eqb_spec r c) as [->|Nc]; simpl.
    - apply occurrences_notin; rewrite filter_In, Nat.eqb_refl; now intros [].
    - destruct (Nat.eqb_spec r d) as [->|Nd].
      + apply occurrences_notin; rewrite filter_In, in_others; lia.
      + apply occurrences_in; [easy|]; rewrite filter_In, in_others.
        now rewrite (proj2 (Nat.eqb_neq _ _) Nc). }
  rewrite E, (Nat.eqb_sym c r).
  destruct (Nat.eqb_spec c d) as [<-|N]; unfold heads; simpl.
  - destruct (Nat.eqb_spec r c); simpl; lia.
  - rewrite (Nat.eqb_sym d r).
    destruct (Nat.eqb_spec r c), (Nat.eqb_spec r d); simpl; lia.
Qed.

(* ------------------------------------------------------------------------ *)
(* Columns: ranks written down with given multiplicities                      *)

Definition column (P : nat) (w : rank -> nat) : list rank :=
  flat_map (fun r => repeat r (w r)) (seq 0 P).

Lemma column_S P w : column (S P) w = column P w ++ repeat P (w P).
Proof.
  unfold column; rewrite seq_S, flat_map_app; simpl; now rewrite app_nil_r.
Qed.

Lemma column_length P w : length (column P w) = sumN P w.
Proof.
  induction P as [|P IH]; [reflexivity|].
  now rewrite column_S, app_length, repeat_length, sumN_S, IH.
Qed.

Lemma column_range P w r : In r (column P w) -> r < P.
Proof.
  intros I; apply in_flat_map in I; destruct I as (x & Hx & I).
  apply in_seq in Hx; apply repeat_spec in I; lia.
Qed.

Lemma column_count P w r : r < P -> occurrences r (column P w) = w r.
Proof.
  assert (R : forall x k, occurrences r (repeat x k) = if x =? r then k else 0).
  { unfold occurrences; intros x k; induction k as [|k IH]; simpl; [now destruct (x =? r)|].
    destruct (x =? r); simpl; now rewrite IH. }
  assert (G : forall k, occurrences r (column k w) = if r <? k then w r else 0).
  { induction k as [|k IH]; [reflexivity|].
    rewrite column_S, occurrences_app, IH, R.
    destruct (Nat.ltb_spec r k), (Nat.ltb_spec r (S k)), (Nat.eqb_spec k r);
      subst; lia. }
  intros Hr; now rewrite G, (proj2 (Nat.ltb_lt _ _) Hr).
Qed.

Lemma occurrences_nth r (X : list rank) :
  sumN (length X) (fun e => if nth e X 0 =? r then 1 else 0) = occurrences r X.
Proof.
  induction X as [|x X IH] using rev_ind; [reflexivity|].
  rewrite app_length, Nat.add_1_r, sumN_S, occurrences_app, <- IH.
  rewrite app_nth2, Nat.sub_diag by lia; unfold occurrences at 1; simpl.
  f_equal; [|now destruct (x =? r)].
  apply sumN_ext; intros i Hi; now rewrite app_nth1 by easy.
Qed.

(* All loads of the form  n + (P-2) w_r  are possible, out and in independently. *)
Theorem hubs P n (y z : rank -> nat) :
  2 <= P -> sumN P y = n -> sumN P z = n ->
  exists s, exactly_once P n s /\
    forall r, r < P -> sent r s = n + (P - 2) * y r /\ received r s = n + (P - 2) * z r.
Proof.
  intros HP Hy Hz.
  set (D := column P y); set (C := column P z).
  assert (LD : length D = n) by (unfold D; now rewrite column_length).
  assert (LC : length C = n) by (unfold C; now rewrite column_length).
  assert (RD : forall e, e < n -> nth e D 0 < P).
  { intros e He; apply (column_range P y), nth_In; unfold D in LD; lia. }
  assert (RC : forall e, e < n -> nth e C 0 < P).
  { intros e He; apply (column_range P z), nth_In; unfold C in LC; lia. }
  assert (Lin : forall (X : list rank) r, length X = n ->
    sumN n (fun e => 1 + (P - 2) * (if nth e X 0 =? r then 1 else 0))
    = n + (P - 2) * occurrences r X).
  { intros X r LX; rewrite <- occurrences_nth, LX.
    clear; induction n as [|n IH]; [unfold sumN; simpl; lia|]; rewrite !sumN_S, IH; lia. }
  exists (routed n (fun e => two_hubs P (nth e C 0) (nth e D 0))); split.
  - apply routed_once; intros e He; apply two_hubs_once; auto.
  - intros r Hr; rewrite sent_routed, received_routed.
    rewrite <- (column_count P y r Hr), <- (column_count P z r Hr).
    fold D C; rewrite <- !Lin by easy; split; apply sumN_ext; intros e He.
    + apply two_hubs_tails; auto.
    + apply two_hubs_heads; auto.
Qed.

(* In particular with one hub: 2(P-1) transfers per element are enough. *)
Theorem traffic_attained P n : 1 <= P ->
  exists s, exactly_once P n s /\ length s = 2 * (P - 1) * n.
Proof.
  intros HP; exists (routed n (fun _ => two_hubs P 0 0)); split.
  - apply routed_once; intros; apply two_hubs_once; lia.
  - induction n as [|n IH]; [unfold routed; simpl; lia|].
    rewrite routed_S, app_length, IH; unfold travels, along, two_hubs, gather, scatter.
    rewrite filter_others, app_length; simpl; rewrite !map_length, size_others; lia.
Qed.
