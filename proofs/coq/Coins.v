(* Step 0 of ../written/coding.md: with coins, too, the entropies of the messages sum to
   at least 2(P-1) n, as they are no less than given the coins. *)

From Coq Require Import List Arith Bool Lia.
From optcc Require Import Model Protocols Products Entropy Received Entropies Sums.
Import ListNotations.
Open Scope nat_scope.

Section Coins.
Context {C W U : Type} `{Eq C} `{Eq U}.
Variables (coins : list C) (l : list W) (m : C -> W -> U).
Hypothesis coins_once : NoDup coins.

Notation pairs := (list_prod coins l).
Notation coin := (fun cw : C * W => fst cw).
Notation says := (fun cw : C * W => m (fst cw) (snd cw)).

(* The cases with one outcome of the coins. *)
Lemma having_coin c : In c coins -> having coin c pairs = map (fun w => (c, w)) l.
Proof.
  assert (one : forall d, having coin c (map (fun w => (d, w)) l)
                          = if eq_dec d c then map (fun w => (c, w)) l else []).
  { intros d; unfold having, same; clear; induction l as [|w l' IH]; simpl.
    - now destruct (eq_dec d c).
    - rewrite IH; destruct (eq_dec d c) as [->|]; easy. }
  assert (app : forall l1 l2, having coin c (l1 ++ l2) = having coin c l1 ++ having coin c l2)
    by (intros; apply filter_app).
  assert (none : forall cs, ~ In c cs -> having coin c (list_prod cs l) = []).
  { induction cs as [|d cs IH]; simpl; intros N; [easy|]; rewrite app, one, IH by tauto.
    destruct (eq_dec d c); [tauto | easy]. }
  induction coins_once as [|d cs Nd N IH]; simpl; [easy|]; intros [->|I]; rewrite app, one.
  - rewrite none by easy; destruct (eq_dec c c); [now rewrite app_nil_r | easy].
  - rewrite IH by easy; destruct (eq_dec d c) as [->|]; easy.
Qed.

Lemma ignorance_map {A B V} `{Eq V} (g : A -> B) (f : B -> V) k :
  ignorance f (map g k) = ignorance (fun a => f (g a)) k.
Proof.
  unfold ignorance; rewrite prod_map; apply prod_ext; intros a _.
  rewrite !alike_def; unfold having; clear; induction k as [|b k IH]; simpl; [easy|].
  destruct (same (f (g b)) (f (g a))); simpl; now rewrite IH.
Qed.

Lemma different_coins : 0 < length l -> Permutation.Permutation (different coin pairs) coins.
Proof.
  intros L; apply Permutation.NoDup_Permutation; [apply NoDup_nodup | easy |].
  intros c; rewrite in_different; split.
  - intros ([d w] & I & <-); now apply in_prod_iff in I.
  - intros I; destruct l as [|w l']; [simpl in L; lia|].
    exists (c, w); split; [apply in_prod; [easy | now left] | easy].
Qed.

Notation M := (length l).
Notation K := (length coins).

(* H(m) >= H(m | coins). *)
Lemma entropy_given_coins : 0 < M ->
  (M ^ M) ^ K * ignorance says pairs
  <= prod (fun c => ignorance (m c) l) coins * (K * M) ^ (K * M).
Proof.
  intros L; assert (S := subadditive coin says pairs); rewrite prod_length in S.
  assert (E : ignorance coin pairs = (M ^ M) ^ K).
  { rewrite (tells_eq coin (pair all_same coin) pairs)
      by (intros ? ? _ _; unfold pair, all_same; congruence).
    rewrite chain_rule, (prod_permutation _ _ _ (different_coins L)), <- prod_const.
    apply prod_ext; intros c I; rewrite ignorance_all_same, having_coin by easy.
    now rewrite map_length. }
  assert (F : ignorance (pair coin says) pairs = prod (fun c => ignorance (m c) l) coins).
  { rewrite (tells_eq (pair coin says) (pair says coin) pairs)
      by (intros ? ? _ _; unfold pair; congruence).
    rewrite chain_rule, (prod_permutation _ _ _ (different_coins L)).
    apply prod_ext; intros c I; rewrite having_coin, ignorance_map by easy; easy. }
  now rewrite E, F in S.
Qed.
End Coins.

Theorem entropies_with_coins {C V} `{Eq C} `{Eq V} (coins : list C) G P
    (p : C -> @protocol (carrier G) V) T :
  NoDup coins -> 2 <= P -> (forall c, In c coins -> sums G P (p c) /\ length (p c) = T) ->
  let M := order G ^ P * length coins in
  order G ^ (2 * (P - 1) * M)
  * prod (fun t => ignorance (fun cx => message_at (zero G) (p (fst cx)) t (snd cx))
                             (list_prod coins (inputs G P))) (seq 0 T)
  <= (M ^ M) ^ T.
Proof.
  intros once HP good M; set (N := order G ^ P); set (K := length coins).
  assert (len : length (inputs G P) = N) by apply choices_length.
  assert (N_pos : 0 < N) by (apply Nat.neq_0_lt_0, Nat.pow_nonzero; generalize (order_pos G); lia).
  (* for each outcome of the coins, all of them multiplied *)
  set (given c t := ignorance (message_at (zero G) (p c) t) (inputs G P)).
  assert (A : order G ^ (2 * (P - 1) * M)
              * prod (fun t => prod (fun c => given c t) coins) (seq 0 T)
              <= ((N ^ N) ^ K) ^ T).
  { unfold M; fold N K; rewrite Nat.mul_assoc, Nat.pow_mul_r, prod_swap.
    rewrite <- (Nat.pow_mul_r _ K T), (Nat.mul_comm K T), (Nat.pow_mul_r _ T K).
    unfold K; rewrite <- !prod_const, <- prod_mul; apply prod_le; intros c I.
    destruct (good c I) as [g L]; rewrite <- L; exact (entropies_sum G P HP (p c) g). }
  (* message by message *)
  assert (B : ((N ^ N) ^ K) ^ T
              * prod (fun t => ignorance (fun cx => message_at (zero G) (p (fst cx)) t (snd cx))
                                         (list_prod coins (inputs G P))) (seq 0 T)
              <= prod (fun t => prod (fun c => given c t) coins) (seq 0 T) * (M ^ M) ^ T).
  { rewrite <- (seq_length T 0) at 1; rewrite <- (seq_length T 0) at 4.
    rewrite <- !prod_const, <- !prod_mul; apply prod_le; intros t _.
    assert (E := entropy_given_coins coins (inputs G P)
      (fun c x => message_at (zero G) (p c) t x) once).
    rewrite len, (Nat.mul_comm (length coins)) in E; now apply E. }
  set (X := order G ^ (2 * (P - 1) * M)) in *.
  set (Y := prod (fun t => prod (fun c => given c t) coins) (seq 0 T)) in *.
  set (Z := prod (fun t => ignorance _ _) (seq 0 T)) in *.
  set (D := ((N ^ N) ^ K) ^ T) in *; set (R := (M ^ M) ^ T) in *.
  assert (D_pos : 0 < D).
  { apply Nat.neq_0_lt_0; unfold D; do 3 apply Nat.pow_nonzero; lia. }
  apply (Nat.mul_le_mono_pos_l _ _ D D_pos).
  replace (D * (X * Z)) with (X * (D * Z)) by ring.
  eapply Nat.le_trans; [apply Nat.mul_le_mono_l, B|].
  rewrite Nat.mul_assoc; now apply Nat.mul_le_mono_r.
Qed.
