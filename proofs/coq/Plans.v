(* Plans for nested rings: rounds that visit every owner of a ring once, and what
   every rank sends and receives in a plan of k m rounds of each pattern m. *)

From Coq Require Import List Arith Bool Lia.
From optcc Require Import Model Counting Rational Routing Rings.
Import ListNotations.
Open Scope nat_scope.

(* ------------------------------------------------------------------------ *)
(* One round of pattern m: every ring rank owns one element                   *)

Lemma sum_one m k : k < m -> sumN m (fun j => one (j =? k)) = 1.
Proof.
  assert (G : forall n, sumN n (fun j => one (j =? k)) = one (k <? n)).
  { induction n as [|n IH]; [easy|]; rewrite sumN_S, IH.
    destruct (Nat.ltb_spec k n), (Nat.ltb_spec k (S n)), (Nat.eqb_spec n k); simpl; lia. }
  intros H; now rewrite G, (proj2 (Nat.ltb_lt _ _) H).
Qed.

Lemma sum_solve m a k k' (f : nat -> nat) :
  k < m -> k' < m ->
  (forall j, j < m -> f j + one (j =? k) + one (j =? k') = 2 + a * one (j =? k)) ->
  sumN m f + 2 = 2 * m + a.
Proof.
  intros Hk Hk' H.
  enough (G : forall n, n <= m ->
    sumN n f + sumN n (fun j => one (j =? k)) + sumN n (fun j => one (j =? k'))
    = 2 * n + a * sumN n (fun j => one (j =? k))).
  { specialize (G m (le_n m)); rewrite !sum_one in G by easy; lia. }
  induction n as [|n IH]; intros Hn; [unfold sumN; simpl; lia|].
  rewrite !sumN_S; specialize (IH ltac:(lia)); specialize (H n ltac:(lia)); nia.
Qed.

Section Round.
Variables (P m r : nat).
Hypothesis Hm : 1 <= m <= P.
Hypothesis Hr : r < P.

Definition round_load := if r <? P - m then m else m + P - 2.

Lemma round_leaf (f : nat -> nat) :
  (forall j, j < m -> f j = 1) -> sumN m f = m.
Proof.
  intros H; rewrite (sumN_ext m f (fun _ => 1) H).
  clear; induction m as [|k IH]; [easy|]; rewrite sumN_S, IH; lia.
Qed.

Lemma round_tails : sumN m (fun j => tails r (ring_arrows P m j)) = round_load.
Proof.
  unfold round_load; destruct (Nat.ltb_spec r (P - m)) as [H|H].
  - apply round_leaf; intros j Hj; now apply leaf_counts.
  - set (i := r - (P - m)); assert (Hi : i < m) by (unfold i; lia).
    generalize (sum_solve m (P - m) i (if S i =? m then 0 else S i)
      (fun j => tails r (ring_arrows P m j)) Hi).
    intros G; specialize (G ltac:(destruct (Nat.eqb_spec (S i) m); lia)).
    enough (sumN m (fun j => tails r (ring_arrows P m j)) + 2 = 2 * m + (P - m)) by lia.
    apply G; intros j Hj; rewrite <- (ring_tails P m j Hm Hj i Hi).
    now replace (P - m + i) with r by (unfold i; lia).
Qed.

Lemma round_heads : sumN m (fun j => heads r (ring_arrows P m j)) = round_load.
Proof.
  unfold round_load; destruct (Nat.ltb_spec r (P - m)) as [H|H].
  - apply round_leaf; intros j Hj; now apply leaf_counts.
  - set (i := r - (P - m)); assert (Hi : i < m) by (unfold i; lia).
    generalize (sum_solve m (P - m) i (if i =? 0 then m - 1 else i - 1)
      (fun j => heads r (ring_arrows P m j)) Hi).
    intros G; specialize (G ltac:(destruct (Nat.eqb_spec i 0); lia)).
    enough (sumN m (fun j => heads r (ring_arrows P m j)) + 2 = 2 * m + (P - m)) by lia.
    apply G; intros j Hj; rewrite <- (ring_heads P m j Hm Hj i Hi).
    now replace (P - m + i) with r by (unfold i; lia).
Qed.
End Round.

(* ------------------------------------------------------------------------ *)
(* Plans: k m rounds of every pattern m                                       *)

Definition round (m : nat) : list (nat * nat) := map (pair m) (seq 0 m).
Fixpoint rounds (m k : nat) : list (nat * nat) :=
  match k with 0 => [] | S k => round m ++ rounds m k end.
Definition plan (P : nat) (k : nat -> nat) : list (nat * nat) :=
  flat_map (fun m => rounds m (k m)) (seq 1 P).

Definition total (f : nat * nat -> nat) (l : list (nat * nat)) := list_sum (map f l).

Lemma total_app f l1 l2 : total f (l1 ++ l2) = total f l1 + total f l2.
Proof. unfold total; now rewrite map_app, list_sum_app. Qed.

Lemma total_rounds f m k : total f (rounds m k) = k * sumN m (fun j => f (m, j)).
Proof.
  induction k as [|k IH]; [easy|]; simpl; rewrite total_app, IH; f_equal.
  unfold total, round, sumN; now rewrite map_map.
Qed.

Lemma total_plan f P k :
  total f (plan P k) = sumN P (fun i => k (S i) * sumN (S i) (fun j => f (S i, j))).
Proof.
  unfold plan; induction P as [|P IH]; [easy|].
  rewrite seq_S, flat_map_app, total_app, IH, sumN_S; f_equal.
  change (1 + P) with (S P); simpl; rewrite app_nil_r; apply total_rounds.
Qed.

Lemma plan_valid P k a : In a (plan P k) -> 1 <= fst a <= P /\ snd a < fst a.
Proof.
  intros I; apply in_flat_map in I; destruct I as (m & Im & I).
  apply in_seq in Im; induction (k m) as [|n IH]; [easy|]; simpl in I.
  apply in_app_iff in I; destruct I as [I|I]; [|auto].
  apply in_map_iff in I; destruct I as (j & <- & I); apply in_seq in I; simpl; lia.
Qed.

Lemma total_nth f l d : sumN (length l) (fun e => f (nth e l d)) = total f l.
Proof.
  induction l as [|a l IH] using rev_ind; [easy|].
  rewrite app_length, Nat.add_1_r, sumN_S, total_app, app_nth2, Nat.sub_diag, <- IH by lia.
  unfold total; simpl; rewrite Nat.add_0_r; f_equal.
  apply sumN_ext; intros i Hi; now rewrite app_nth1.
Qed.

Lemma size_plan f l : length (filter f l) = total (fun a => one (f a)) l.
Proof.
  unfold total; induction l as [|a l IH]; [easy|]; simpl.
  destruct (f a); simpl; now rewrite IH.
Qed.

Section Plan.
Variables (P : nat) (k : nat -> nat).

Lemma plan_once :
  exactly_once P (length (plan P k)) (nested_rings P (plan P k)).
Proof.
  apply routed_once; intros e He.
  assert (V := plan_valid P k _ (nth_In _ (1, 0) He)).
  destruct (nth e (plan P k) (1, 0)) as [m j]; simpl in V; now apply ring_once.
Qed.

Definition of_route (count : list arrow -> nat) (a : nat * nat) : nat :=
  count (ring_arrows P (fst a) (snd a)).

Lemma plan_count (count : list arrow -> nat) r :
  (forall m, 1 <= m <= P ->
     sumN m (fun j => count (ring_arrows P m j)) = round_load P m r) ->
  sumN (length (plan P k)) (fun e =>
    count (arrows (fun e => let (m, j) := nth e (plan P k) (1, 0) in ring_route P m j) e))
  = sumN P (fun i => k (S i) * round_load P (S i) r).
Proof.
  intros H.
  transitivity (sumN (length (plan P k))
    (fun e => of_route count (nth e (plan P k) (1, 0)))).
  - apply sumN_ext; intros e _; unfold arrows; now destruct (nth e _ _).
  - rewrite total_nth, total_plan; apply sumN_ext; intros i Hi.
    f_equal; apply (H (S i)); lia.
Qed.

Lemma plan_sent r : r < P ->
  sent r (nested_rings P (plan P k)) = sumN P (fun i => k (S i) * round_load P (S i) r).
Proof.
  intros Hr; unfold nested_rings; rewrite sent_routed; apply plan_count.
  intros m Hm; now apply round_tails.
Qed.

Lemma plan_received r : r < P ->
  received r (nested_rings P (plan P k)) = sumN P (fun i => k (S i) * round_load P (S i) r).
Proof.
  intros Hr; unfold nested_rings; rewrite received_routed; apply plan_count.
  intros m Hm; now apply round_heads.
Qed.

Lemma plan_pattern m : 1 <= m <= P ->
  length (filter (fun a => fst a =? m) (plan P k)) = k m * m.
Proof.
  intros Hm; rewrite size_plan, total_plan; simpl.
  assert (G : forall i, sumN (S i) (fun _ => one (S i =? m)) = m * one (S i =? m)).
  { intros i; destruct (Nat.eqb_spec (S i) m) as [<-|N]; simpl one.
    - generalize (S i); intros x; induction x as [|x IH]; [easy|]; rewrite sumN_S, IH; lia.
    - generalize (S i); intros x; induction x as [|x IH]; [easy|]; rewrite sumN_S, IH; lia. }
  rewrite (sumN_ext _ _ (fun i => (k m * m) * one (i =? m - 1))).
  - assert (F : forall n c, sumN n (fun i => c * one (i =? m - 1))
                          = c * sumN n (fun i => one (i =? m - 1))).
    { intros n c; induction n as [|n IH]; [unfold sumN; simpl; lia|].
      rewrite !sumN_S, IH; lia. }
    rewrite F, sum_one by lia; lia.
  - intros i Hi; rewrite G.
    destruct (Nat.eqb_spec (S i) m) as [<-|N]; simpl one.
    + simpl; rewrite Nat.sub_0_r, Nat.eqb_refl; simpl; lia.
    + rewrite (proj2 (Nat.eqb_neq i (m - 1))) by lia; simpl; lia.
Qed.
End Plan.
