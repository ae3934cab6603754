(* From numbers of transfers to time: divide by the rates.

   The sum over the senders counts every transfer once, and so does the sum over
   the receivers. *)

From Coq Require Import List Arith Bool QArith Qminmax Lia Lqa.
From optcc Require Import Model Counting Blocks Rational.
Import ListNotations.
Open Scope Q_scope.

(* Counting by label. *)
Lemma count_by_label (label : transfer -> nat) p q s :
  (forall t, In t s -> (label t < q)%nat) ->
  count p s = sumN q (fun b => count (fun t => (label t =? b)%nat && p t) s).
Proof.
  intros H.
  assert (G : forall t k, sumN k (fun b => if (label t =? b)%nat then 1 else 0)%nat
                          = if (label t <? k)%nat then 1%nat else 0%nat).
  { intros t k; induction k as [|k IH]; [reflexivity|]; rewrite sumN_S, IH.
    destruct (Nat.ltb_spec (label t) k), (Nat.ltb_spec (label t) (S k)),
      (Nat.eqb_spec (label t) k); lia. }
  assert (Z : forall k, sumN k (fun _ => 0%nat) = 0%nat).
  { induction k as [|k IH]; [easy|]; rewrite sumN_S; lia. }
  assert (A : forall k f g, (sumN k (fun b => f b + g b) = sumN k f + sumN k g)%nat).
  { intros k f g; induction k as [|k IH]; [easy|]; rewrite !sumN_S, IH; lia. }
  induction s as [|t s IH]; [unfold count; simpl; now rewrite Z|].
  specialize (IH (fun t' I => H t' (or_intror I))).
  change (t :: s) with ([t] ++ s).
  rewrite count_app, IH.
  transitivity (sumN q (fun b => count (fun t => (label t =? b)%nat && p t) [t]
    + count (fun t => (label t =? b)%nat && p t) s)%nat);
    [|apply sumN_ext; intros; now rewrite count_app].
  rewrite A; f_equal.
  unfold count; simpl; destruct (p t); simpl.
  - specialize (G t q); rewrite (proj2 (Nat.ltb_lt _ _)) in G
      by (apply H; simpl; auto).
    rewrite <- G at 1; apply sumN_ext; intros i _; rewrite andb_true_r.
    now destruct (label t =? i)%nat.
  - rewrite <- (Z q) at 1; apply sumN_ext; intros i _; now rewrite andb_false_r.
Qed.

(* If k_b <= T * rate_b for every b, the sums obey it too. *)
Lemma rates_add q (k : nat -> nat) T (rate : nat -> Q) m :
  (0 < q)%nat -> positive q rate -> (m <= sumN q k)%nat ->
  (forall b, (b < q)%nat -> Qnat (k b) <= T * rate b) ->
  Qnat m / sumQ q rate <= T.
Proof.
  intros Hq Hr Hm H; apply Qdiv_le; [now apply sumQ_pos|].
  apply Qle_trans with (Qnat (sumN q k)); [now apply Qnat_le|].
  rewrite Qnat_sumN, <- sumQ_scale; now apply sumQ_le.
Qed.

Lemma rate_one T rate k m :
  0 < rate -> (m <= k)%nat -> Qnat k <= T * rate -> Qnat m / rate <= T.
Proof.
  intros Hr Hm H; apply Qdiv_le; [easy|].
  eapply Qle_trans; [apply Qnat_le, Hm | exact H].
Qed.

Section Blocks.
Variables (P q n : nat) (block : rank -> nat) (s : schedule).
Variables (T : Q) (out inn : nat -> Q).
Hypothesis part : partitions P q block.
Hypothesis good : is_allreduce P n s.
Hypothesis Hq : (2 <= q)%nat.
Hypothesis out_pos : positive q out.
Hypothesis inn_pos : positive q inn.
Hypothesis fit : blocks_fit q block s T out inn.

Theorem partition_time :
  Qnat (2 * (q - 1) * n) / sumQ q out <= T /\
  Qnat (2 * (q - 1) * n) / sumQ q inn <= T.
Proof.
  destruct good as [inside _]; destruct part as [range _].
  generalize (partition_total _ _ _ _ _ part good); intros Hm.
  split.
  - apply (rates_add q (fun b => count (leaves block b) s)); auto; try lia.
    + rewrite (count_by_label (fun t => block (src t)) _ q) in Hm; [exact Hm|].
      intros t I; apply range, (inside t I).
    + intros b Hb; now apply fit.
  - apply (rates_add q (fun b => count (enters block b) s)); auto; try lia.
    + rewrite (count_by_label (fun t => block (dst t)) _ q) in Hm; [exact Hm|].
      intros t I; apply range, (inside t I).
    + intros b Hb; now apply fit.
Qed.

Theorem block_cut_time b : (b < q)%nat ->
  Qnat n / out b <= T /\ Qnat n / inn b <= T.
Proof.
  intros Hb; destruct (block_cut _ _ _ _ _ part good b Hq Hb) as [A B].
  destruct (fit b Hb) as [F G].
  split; [exact (rate_one T (out b) _ n (out_pos b Hb) A F)
         | exact (rate_one T (inn b) _ n (inn_pos b Hb) B G)].
Qed.
End Blocks.

Section Ranks.
Variables (P n : nat) (s : schedule) (T : Q) (out inn : rank -> Q).
Hypothesis HP : (2 <= P)%nat.
Hypothesis good : is_allreduce P n s.
Hypothesis out_pos : positive P out.
Hypothesis inn_pos : positive P inn.
Hypothesis fit : fits P s T out inn.

(* A rank is a block; what crosses its border is part of what it sends. *)
Lemma ranks_fit : blocks_fit P (fun r => r) s T out inn.
Proof.
  intros r Hr; destruct (fit r Hr) as [A B].
  split; eapply Qle_trans; [apply Qnat_le | exact A | apply Qnat_le | exact B];
    apply count_le; intros t E; now apply andb_true_iff in E.
Qed.

Theorem traffic_time :
  Qnat (2 * (P - 1) * n) / sumQ P out <= T /\
  Qnat (2 * (P - 1) * n) / sumQ P inn <= T.
Proof.
  apply (partition_time P P n (fun r => r) s); auto using singletons, ranks_fit.
Qed.

Theorem cut_time r : (r < P)%nat -> Qnat n / out r <= T /\ Qnat n / inn r <= T.
Proof.
  intros Hr.
  apply (block_cut_time P P n (fun r => r) s); auto using singletons, ranks_fit.
Qed.

Lemma cut_time_min (rate : rank -> Q) :
  positive P rate -> (forall r, (r < P)%nat -> Qnat n / rate r <= T) ->
  Qnat n / minQ P rate <= T.
Proof.
  intros Hp H; apply Qdiv_le; [apply minQ_pos; auto; lia|].
  (* the smallest rate is one of the rates *)
  assert (E : exists r, (r < P)%nat /\ minQ P rate == rate r).
  { assert (G : forall l, (forall i, In i l -> (i < P)%nat) ->
      exists r, (r < P)%nat /\ fold_right Qmin (rate 0%nat) (map rate l) == rate r).
    { induction l as [|i l IH]; simpl; intros Hl; [exists 0%nat; split; [lia|reflexivity]|].
      destruct IH as (r & Hr & Er); [auto|].
      destruct (Q.min_spec (rate i) (fold_right Qmin (rate 0%nat) (map rate l)))
        as [[_ E]|[_ E]]; [exists i | exists r]; split; auto.
      rewrite E; exact Er. }
    apply G; intros i Hi; apply in_seq in Hi; lia. }
  destruct E as (r & Hr & ->); apply Qle_of_div; auto.
Qed.

Theorem lower_bound : best_time P n out inn <= T.
Proof.
  destruct traffic_time; unfold best_time.
  repeat apply Q.max_lub; auto; apply cut_time_min; auto; intros r Hr; now apply cut_time.
Qed.
End Ranks.
