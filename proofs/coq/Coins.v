(* Step 0 of ../written/coding.md: with coins, too, the entropies of the messages sum to
   at least 2(P-1) n, as they are no less than given the coins. *)

From Coq Require Import List Arith Bool Lia.
From optcc Require Import Model Protocols Products Entropy Given Received Sums.
Import ListNotations.
Open Scope nat_scope.

(* If entropies sum to e n or more for each outcome of the coins, they do so in all. *)
Lemma entropies_given_coins {C V} `{Eq C} `{Eq V} (coins : list C) G P
    (p : C -> @protocol (carrier G) V) e ts :
  NoDup coins ->
  (forall c, In c coins ->
     order G ^ (e * order G ^ P)
     * prod (fun t => ignorance (message_at (zero G) (p c) t) (inputs G P)) ts
     <= ((order G ^ P) ^ (order G ^ P)) ^ length ts) ->
  let M := order G ^ P * length coins in
  order G ^ (e * M)
  * prod (fun t => ignorance (fun cx => message_at (zero G) (p (fst cx)) t (snd cx))
                             (list_prod coins (inputs G P))) ts
  <= (M ^ M) ^ length ts.
Proof.
  intros once each_c M; set (N := order G ^ P) in *; set (K := length coins).
  assert (len : length (inputs G P) = N) by apply choices_length.
  assert (N_pos : 0 < N) by (apply Nat.neq_0_lt_0, Nat.pow_nonzero; generalize (order_pos G); lia).
  set (given c t := ignorance (message_at (zero G) (p c) t) (inputs G P)).
  set (Y := prod (fun t => prod (fun c => given c t) coins) ts).
  set (Z := prod (fun t => ignorance _ _) ts); set (R := (M ^ M) ^ length ts).
  set (D := ((N ^ N) ^ K) ^ length ts).
  (* for each outcome, all multiplied *)
  assert (A : order G ^ (e * M) * Y <= D).
  { unfold M, Y, D; rewrite Nat.mul_assoc, Nat.pow_mul_r, prod_swap.
    rewrite <- (Nat.pow_mul_r _ K), (Nat.mul_comm K), (Nat.pow_mul_r _ _ K).
    unfold K; rewrite <- !prod_const, <- prod_mul; apply prod_le; intros c I.
    rewrite prod_const; now apply each_c. }
  (* message by message *)
  assert (B : D * Z <= Y * R).
  { unfold D, Z, Y, R; rewrite <- !prod_const, <- !prod_mul; apply prod_le; intros t _.
    assert (E := entropy_given_coins coins (inputs G P)
      (fun c x => message_at (zero G) (p c) t x) once).
    rewrite len, (Nat.mul_comm (length coins)) in E.
    now apply E. }
  assert (D_pos : 0 < D).
  { apply Nat.neq_0_lt_0; unfold D; do 3 apply Nat.pow_nonzero; lia. }
  apply (Nat.mul_le_mono_pos_l _ _ D D_pos).
  rewrite Nat.mul_assoc, (Nat.mul_comm D), <- Nat.mul_assoc.
  eapply Nat.le_trans; [apply Nat.mul_le_mono_l, B|].
  rewrite Nat.mul_assoc; now apply Nat.mul_le_mono_r.
Qed.

Theorem entropies_with_coins {C V} `{Eq C} `{Eq V} (coins : list C) G P
    (p : C -> @protocol (carrier G) V) T :
  NoDup coins -> 2 <= P -> (forall c, In c coins -> sums G P (p c) /\ length (p c) = T) ->
  let M := order G ^ P * length coins in
  order G ^ (2 * (P - 1) * M)
  * prod (fun t => ignorance (fun cx => message_at (zero G) (p (fst cx)) t (snd cx))
                             (list_prod coins (inputs G P))) (seq 0 T)
  <= (M ^ M) ^ T.
Proof.
  intros once HP good M; rewrite <- (seq_length T 0) at 2.
  apply entropies_given_coins; [easy|]; intros c I; destruct (good c I) as [g <-].
  rewrite seq_length; exact (entropies_sum G P HP (p c) g).
Qed.

Theorem partition_entropies_with_coins {C V} `{Eq C} `{Eq V} (coins : list C) G P q block
    (p : C -> @protocol (carrier G) V) ts :
  NoDup coins -> 2 <= q -> partitions P q block ->
  (forall c, In c coins -> sums G P (p c) /\ passing block (p c) = ts) ->
  let M := order G ^ P * length coins in
  order G ^ (2 * (q - 1) * M)
  * prod (fun t => ignorance (fun cx => message_at (zero G) (p (fst cx)) t (snd cx))
                             (list_prod coins (inputs G P))) ts
  <= (M ^ M) ^ length ts.
Proof.
  intros once Hq part good M; apply entropies_given_coins; [easy|].
  intros c I; destruct (good c I) as [g <-].
  exact (partition_entropies_sum G P (two_ranks P q block part Hq) (p c) g q block Hq part).
Qed.
