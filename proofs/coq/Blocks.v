(* Partition, traffic and cut bounds.

   A schedule stays a valid AllReduce when ranks are merged into blocks, so the
   bound of Gossip.v holds for the blocks.  Every rank its own block gives the
   traffic and cut bounds back. *)

From Coq Require Import List Arith Bool Lia.
From optcc Require Import Model Counting Gossip.
Import ListNotations.
Open Scope nat_scope.

Section Blocks.
Variable block : rank -> nat.

(* The merged schedule: blocks instead of ranks. *)
Definition merge (t : transfer) : transfer :=
  Transfer (block (src t)) (block (dst t)) (elt t) (adds t).

(* A block knows at least what any of its ranks knows. *)
Lemma merge_knows s e r c :
  final s e r c = true -> final (map merge s) e (block r) (block c) = true.
Proof.
  revert r; induction s as [|t s IH] using rev_ind; intros r H.
  - apply Nat.eqb_eq in H; subst; apply Nat.eqb_refl.
  - unfold final in *; rewrite map_app, fold_left_app in *; simpl in *.
    apply step_true in H; apply step_true; destruct H as [H|(-> & -> & H)].
    + left; auto.
    + right; simpl; auto.
Qed.

Variables (P q n : nat) (s : schedule).
Hypothesis part : partitions P q block.
Hypothesis good : is_allreduce P n s.

Lemma merged_knows e b c : e < n -> b < q -> c < q ->
  final (map merge s) e b c = true.
Proof.
  intros He Hb Hc; destruct part as [_ onto], good as [_ fin].
  destruct (onto b Hb) as (r & ? & <-), (onto c Hc) as (r' & ? & <-).
  apply merge_knows, fin; auto.
Qed.

Theorem partition_per_element e : e < n ->
  2 * (q - 1) <= count (fun t => of_element e t && crosses block t) s.
Proof.
  intros He; etransitivity; [apply (gossip_bound q (map merge s) e)|].
  - intros; now apply merged_knows.
  - now rewrite count_map.
Qed.

Theorem partition_total : 2 * (q - 1) * n <= count (crosses block) s.
Proof. apply count_elements, partition_per_element. Qed.

(* With two blocks or more every element leaves and enters every block. *)
Theorem block_sends e b : 2 <= q -> e < n -> b < q ->
  exists t, In t s /\ elt t = e /\ block (src t) = b /\ block (dst t) <> b.
Proof.
  intros Hq He Hb; set (b' := if b =? 0 then 1 else 0).
  assert (b' < q /\ b' <> b) as [Hb' N].
  { unfold b'; destruct (Nat.eqb_spec b 0); lia. }
  destruct (has_left _ _ _ _ (merged_knows e b' b He Hb' Hb) N) as (t & I & ? & ? & ?).
  apply in_map_iff in I; destruct I as (t' & <- & I); now exists t'.
Qed.

Theorem block_receives e b : 2 <= q -> e < n -> b < q ->
  exists t, In t s /\ elt t = e /\ block (dst t) = b /\ block (src t) <> b.
Proof.
  intros Hq He Hb; set (b' := if b =? 0 then 1 else 0).
  assert (b' < q /\ b' <> b) as [Hb' N].
  { unfold b'; destruct (Nat.eqb_spec b 0); lia. }
  assert (F : initial e b b' = false) by (apply Nat.eqb_neq; lia).
  destruct (has_arrived _ _ _ _ _ F (merged_knows e b b' He Hb Hb')) as (t & I & ? & ? & ?).
  apply in_map_iff in I; destruct I as (t' & <- & I); now exists t'.
Qed.

Theorem block_cut b : 2 <= q -> b < q ->
  n <= count (leaves block b) s /\ n <= count (enters block b) s.
Proof.
  intros Hq Hb; split; rewrite <- (Nat.mul_1_l n) at 1;
    apply count_elements; intros e He; apply count_one.
  - destruct (block_sends e b Hq He Hb) as (t & I & E & Es & Ed).
    exists t; repeat split; auto; unfold leaves, crosses.
    rewrite (proj2 (Nat.eqb_eq _ _) Es), (proj2 (Nat.eqb_neq _ _)); [easy|congruence].
  - destruct (block_receives e b Hq He Hb) as (t & I & E & Ed & Es).
    exists t; repeat split; auto; unfold enters, crosses.
    rewrite (proj2 (Nat.eqb_eq _ _) Ed), (proj2 (Nat.eqb_neq _ _)); [easy|congruence].
Qed.
End Blocks.

(* ------------------------------------------------------------------------ *)
(* Every rank its own block                                                   *)

Lemma singletons P : partitions P P (fun r => r).
Proof. split; [auto | intros b Hb; now exists b]. Qed.

Section Ranks.
Variables (P n : nat) (s : schedule).
Hypothesis good : is_allreduce P n s.

Theorem traffic_per_element e : e < n -> 2 * (P - 1) <= count (of_element e) s.
Proof.
  intros He.
  etransitivity; [apply (partition_per_element _ _ _ _ _ (singletons P) good e He)|].
  apply count_le; intros t E; now apply andb_true_iff in E.
Qed.

Theorem traffic_total : 2 * (P - 1) * n <= length s.
Proof.
  etransitivity; [apply (partition_total _ _ _ _ _ (singletons P) good)|].
  apply count_length.
Qed.
End Ranks.
