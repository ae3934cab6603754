(* Entropies of several variables: they add up to no less than that of all together; and
   none is less than what it is given another, as step 0 of ../written/coding.md needs. *)

From Coq Require Import List Arith Bool Lia.
From optcc Require Import Model Protocols Products Entropy.
Import ListNotations.
Open Scope nat_scope.

Definition all_same {W} (_ : W) : nat := 0.

Section Subadditive.
Context {W : Type}.

Lemma ignorance_all_same (l : list W) : ignorance all_same l = length l ^ length l.
Proof.
  unfold ignorance; rewrite <- prod_const; apply prod_ext; intros w _.
  rewrite !alike_def; unfold having; f_equal; clear; induction l as [|v l IH]; [easy|].
  simpl; now rewrite IH.
Qed.

Lemma ignorance_le {U} `{Eq U} (f : W -> U) l : ignorance f l <= length l ^ length l.
Proof. rewrite <- ignorance_all_same; now apply tells_le. Qed.

(* H(f, m) <= H(f) + H(m). *)
Lemma subadditive {U M} `{Eq U} `{Eq M} (f : W -> U) (m : W -> M) l :
  ignorance f l * ignorance m l <= ignorance (pair f m) l * length l ^ length l.
Proof.
  rewrite <- ignorance_all_same.
  rewrite (tells_eq m (pair all_same m) l); [now apply conditioning | |];
    intros w w' _ _; unfold pair, all_same; congruence.
Qed.

Lemma subadditive_list {U M} `{Eq U} `{Eq M} (f : W -> U) (ms : list (W -> M)) l :
  ignorance f l * prod (fun m => ignorance m l) ms
  <= ignorance (pair f (fun w => map (fun m => m w) ms)) l * (length l ^ length l) ^ length ms.
Proof.
  induction ms as [|m ms IH].
  - change (prod _ []) with 1; simpl; rewrite !Nat.mul_1_r; apply tells_le.
    intros w w' _ _; unfold pair; congruence.
  - rewrite prod_cons; simpl length; rewrite Nat.pow_succ_r'.
    assert (S := subadditive (pair f (fun w => map (fun m => m w) ms)) m l).
    rewrite (tells_eq (pair (pair f _) m) (pair f (fun w => map (fun m => m w) (m :: ms)))) in S.
    + nia.
    + intros w w' _ _; unfold pair; simpl; congruence.
    + intros w w' _ _; unfold pair; simpl; congruence.
Qed.
End Subadditive.

(* ------------------------------------------------------------------------ *)
(* Given coins                                                                *)

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
