(* From bits to time, for protocols that may code. *)

From Coq Require Import List Arith Bool QArith Qminmax Lia.
From optcc Require Import Model Blocks Rational Time Protocols Products Merging Alphabets Sums.
Import ListNotations.
Open Scope nat_scope.

Section Carried.
Context {X V : Type}.
Implicit Type p : @protocol X V.

Lemma carried_cons which m p b bs :
  carried which (m :: p) (b :: bs) = (if which m then b else 0) + carried which p bs.
Proof. unfold carried; simpl; destruct (which m); easy. Qed.

Lemma carried_le (which which' : message -> bool) p lengths :
  (forall m, which m = true -> which' m = true) ->
  carried which p lengths <= carried which' p lengths.
Proof.
  intros H; revert lengths; induction p as [|m p IH]; intros [|b bs]; try easy.
  rewrite !carried_cons; specialize (IH bs).
  destruct (which m) eqn:E; [rewrite (H m E)|]; lia.
Qed.

Lemma carried_by_label (label : message -> nat) which q p lengths :
  (forall m, In m p -> label m < q) ->
  carried which p lengths
  = sumN q (fun b => carried (fun m => (label m =? b) && which m) p lengths).
Proof.
  assert (Z : forall k, sumN k (fun _ => 0) = 0).
  { induction k as [|k IH]; [easy|]; rewrite sumN_S; lia. }
  assert (A : forall k f g, sumN k (fun b => f b + g b) = sumN k f + sumN k g).
  { intros k f g; induction k as [|k IH]; [easy|]; rewrite !sumN_S, IH; lia. }
  assert (G : forall i c k, sumN k (fun b => if i =? b then c else 0) = if i <? k then c else 0).
  { intros i c k; induction k as [|k IH]; [easy|]; rewrite sumN_S, IH.
    destruct (Nat.ltb_spec i k), (Nat.ltb_spec i (S k)), (Nat.eqb_spec i k); lia. }
  revert lengths; induction p as [|m p IH]; intros [|b bs] I; try (now rewrite Z).
  rewrite carried_cons, (IH bs) by (intros; apply I; now right).
  transitivity (sumN q (fun i => (if label m =? i then (if which m then b else 0) else 0)
    + carried (fun m => (label m =? i) && which m) p bs)).
  - rewrite A, G, (proj2 (Nat.ltb_lt _ _) (I m (or_introl eq_refl))); easy.
  - apply sumN_ext; intros i _; rewrite carried_cons.
    destruct (label m =? i), (which m); easy.
Qed.

Lemma prod_carried which p (alphabets : list (list V)) lengths :
  Forall2 (fun alphabet bits => length alphabet <= 2 ^ bits) alphabets lengths ->
  prod (fun ma => length (snd ma)) (filter (fun ma => which (fst ma)) (combine p alphabets))
  <= 2 ^ carried which p lengths.
Proof.
  intros F; revert p; induction F as [|a b al bs L F IH]; intros [|m p]; try easy.
  rewrite carried_cons; simpl; specialize (IH p).
  destruct (which m); [|easy]; rewrite prod_cons, Nat.pow_add_r; now apply Nat.mul_le_mono.
Qed.
End Carried.

Section Time.
Context {V : Type} `{Eq V}.
Variables (G : group) (P n : nat) (p : @protocol (carrier G) V) (lengths : list nat).
Hypothesis HP : 2 <= P.
Hypothesis good : sums G P p.
Hypothesis bits_enough : takes (zero G) (inputs G P) p lengths.
Hypothesis input_bits : 2 ^ n <= order G.

Lemma bits_between q block : 2 <= q -> partitions P q block ->
  2 * (q - 1) * n <= carried (passes block) p lengths.
Proof.
  intros Hq part; destruct bits_enough as (al & speaks & F).
  assert (B := partition_sum G P HP p good al speaks q block Hq part).
  assert (C := Nat.le_trans _ _ _ B (prod_carried (passes block) p al lengths F)).
  apply (Nat.pow_le_mono_l _ _ (2 * (q - 1))) in input_bits.
  assert (D := Nat.le_trans _ _ _ input_bits C).
  rewrite <- Nat.pow_mul_r in D; apply Nat.pow_le_mono_r_iff in D; lia.
Qed.

Lemma bits_into block b : partitions P 2 block -> b < 2 ->
  n <= carried (entering block b) p lengths.
Proof.
  intros part Hb; destruct bits_enough as (al & speaks & F).
  assert (B := into_block_sum G P HP p good al speaks block b part Hb).
  unfold entered in B; rewrite prod_map in B.
  assert (C := Nat.le_trans _ _ _ B (prod_carried (entering block b) p al lengths F)).
  assert (D := Nat.le_trans _ _ _ input_bits C).
  apply Nat.pow_le_mono_r_iff in D; lia.
Qed.

(* One rank and all others are two blocks. *)
Lemma bits_of_rank s : s < P ->
  n <= carried (fun m => from m =? s) p lengths /\ n <= carried (fun m => to m =? s) p lengths.
Proof.
  intros Hs; set (block := fun r : rank => if r =? s then 0 else 1).
  assert (part : partitions P 2 block).
  { split; [intros r _; unfold block; destruct (r =? s); lia|].
    intros [|[|b]] Hb; [exists s | exists (if s =? 0 then 1 else 0) | lia]; unfold block.
    - now rewrite Nat.eqb_refl.
    - destruct (Nat.eqb_spec s 0) as [->|]; [now split|]; split; [lia|].
      destruct (Nat.eqb_spec 0 s); [lia | easy]. }
  split; eapply Nat.le_trans.
  - apply (bits_into block 1 part); lia.
  - apply carried_le; intros m; unfold entering, block.
    destruct (to m =? s), (from m =? s); easy.
  - apply (bits_into block 0 part); lia.
  - apply carried_le; intros m; unfold entering, block.
    destruct (to m =? s), (from m =? s); easy.
Qed.

Open Scope Q_scope.
Variables (T : Q) (out inn : nat -> Q).

Theorem coded_partition_time q block : (2 <= q)%nat -> partitions P q block ->
  positive q out -> positive q inn -> coded_blocks_fit q block p lengths T out inn ->
  Qnat (2 * (q - 1) * n) / sumQ q out <= T /\ Qnat (2 * (q - 1) * n) / sumQ q inn <= T.
Proof.
  intros Hq part po pi fit; assert (B := bits_between q block Hq part).
  destruct part as [range _], good as [inside _]; split.
  - apply (rates_add q (fun b =>
      carried (fun m => (block (from m) =? b)%nat && passes block m) p lengths)); auto;
      [lia | | intros b Hb; now apply fit].
    rewrite (carried_by_label (fun m => block (from m)) _ q) in B; [easy|].
    intros m I; apply range, (inside m I).
  - apply (rates_add q (fun b =>
      carried (fun m => (block (to m) =? b)%nat && passes block m) p lengths)); auto;
      [lia | | intros b Hb; now apply fit].
    rewrite (carried_by_label (fun m => block (to m)) _ q) in B; [easy|].
    intros m I; apply range, (inside m I).
Qed.

Hypothesis out_pos : positive P out.
Hypothesis inn_pos : positive P inn.
Hypothesis fit : coded_fits P p lengths T out inn.

Theorem coded_time :
  Qnat (2 * (P - 1) * n) / sumQ P out <= T /\ Qnat (2 * (P - 1) * n) / sumQ P inn <= T.
Proof.
  apply (coded_partition_time P (fun r => r)); auto using singletons.
  intros r Hr; destruct (fit r Hr) as [A B].
  split; eapply Qle_trans; [apply Qnat_le | exact A | apply Qnat_le | exact B];
    apply carried_le; intros m E; now apply andb_true_iff in E.
Qed.

Theorem coded_lower_bound : best_time P n out inn <= T.
Proof.
  destruct coded_time; unfold best_time.
  assert (cut : forall r, (r < P)%nat -> Qnat n / out r <= T /\ Qnat n / inn r <= T).
  { intros r Hr; destruct (bits_of_rank r Hr) as [A B], (fit r Hr) as [F F'].
    split; [exact (rate_one T (out r) _ n (out_pos r Hr) A F)
           | exact (rate_one T (inn r) _ n (inn_pos r Hr) B F')]. }
  repeat apply Q.max_lub; auto; apply cut_time_min; auto; intros r Hr; now apply cut.
Qed.
End Time.
