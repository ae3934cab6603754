(* Sums of rationals over lists, and the inequality between the means: the one
   inequality that step 3 of ../written/coding.md rests on. *)

From Coq Require Import List Arith Bool QArith Lia Lqa Permutation Setoid Morphisms.
From optcc Require Import Model Protocols Rational Products.
Import ListNotations.
Open Scope Q_scope.

Definition total {W} (f : W -> Q) (l : list W) : Q := fold Qplus 0 f l.
Arguments total : simpl never.

Lemma total_ext {W} (f g : W -> Q) l :
  (forall w, In w l -> f w == g w) -> total f l == total g l.
Proof. exact (fold_ext Qeq Qplus 0 f g l). Qed.

Lemma total_swap {W W'} (f : W -> W' -> Q) l l' :
  total (fun w => total (f w) l') l == total (fun w' => total (fun w => f w w') l) l'.
Proof. exact (fold_swap Qeq Qplus 0 Qplus_0_l Qplus_comm Qplus_assoc f l l'). Qed.

Lemma total_different {W U} `{Eq U} (h : W -> U) (f : W -> Q) l :
  total f l == total (fun u => total f (having h u l)) (different h l).
Proof.
  exact (fold_different Qeq Qplus 0 Qplus_0_l Qplus_comm Qplus_assoc h f l).
Qed.

Lemma total_filter {W} (f : W -> Q) p l :
  total f (filter p l) == total (fun w => if p w then f w else 0) l.
Proof. exact (fold_filter Qeq Qplus 0 Qplus_0_l f p l). Qed.

Lemma total_cons {W} (f : W -> Q) w l : total f (w :: l) = f w + total f l.
Proof. easy. Qed.

Lemma total_app {W} (f : W -> Q) l l' : total f (l ++ l') == total f l + total f l'.
Proof.
  induction l as [|w l IH]; [unfold total; simpl; ring|].
  simpl; rewrite !total_cons, IH; ring.
Qed.

Lemma total_scale {W} (f : W -> Q) c l : total (fun w => c * f w) l == c * total f l.
Proof.
  induction l as [|w l IH]; [unfold total; simpl; ring|]; rewrite !total_cons, IH; ring.
Qed.

Global Instance Qle_Transitive : Transitive Qle := Qle_trans.

Lemma total_le {W} (f g : W -> Q) l :
  (forall w, In w l -> f w <= g w) -> total f l <= total g l.
Proof.
  induction l as [|w l IH]; intros H; [apply Qle_refl|]; rewrite !total_cons.
  apply Qplus_le_compat; [apply H; now left | apply IH; intros; apply H; now right].
Qed.

Lemma total_const {W} c (l : list W) : total (fun _ => c) l == Qnat (length l) * c.
Proof.
  induction l as [|w l IH]; [unfold total, Qnat; simpl; ring|].
  rewrite total_cons, IH; simpl length; rewrite Qnat_S; ring.
Qed.

Lemma total_map {W U} (g : W -> U) (f : U -> Q) l :
  total f (map g l) = total (fun w => f (g w)) l.
Proof. induction l as [|w l IH]; [easy|]; simpl map; now rewrite !total_cons, IH. Qed.

Lemma total_incl {U} (f : U -> Q) (l l' : list U) :
  NoDup l -> incl l l' -> (forall u, In u l' -> 0 <= f u) -> total f l <= total f l'.
Proof.
  revert l'; induction l as [|u l IH]; intros l' N I pos.
  - apply Qle_trans with (total (fun _ => 0) l'); [|now apply total_le].
    rewrite total_const; change (total f []) with 0; lra.
  - inversion_clear N as [|? ? Nu N'].
    destruct (in_split u l') as (l1 & l2 & ->); [apply I; now left|].
    rewrite total_cons, total_app, total_cons.
    assert (H : total f l <= total f (l1 ++ l2)); [|rewrite total_app in H; lra].
    apply IH; [easy | |].
    + intros v J; assert (K := I v (or_intror J)); apply in_app_or in K; apply in_or_app.
      destruct K as [K|[->|K]]; [now left | easy | now right].
    + intros v J; apply pos; apply in_app_or in J; apply in_or_app; simpl; tauto.
Qed.

Lemma total_nat {W} (f : W -> nat) l :
  total (fun w => Qnat (f w)) l == Qnat (list_sum (map f l)).
Proof.
  induction l as [|w l IH]; [unfold total; simpl; reflexivity|].
  rewrite total_cons, IH; simpl; rewrite Qnat_plus; reflexivity.
Qed.

(* ------------------------------------------------------------------------ *)
(* Numbers whose mean is at most 1 have a product of at most 1                *)

Definition product (l : list Q) : Q := fold_right Qmult 1 l.
Definition plus (l : list Q) : Q := fold_right Qplus 0 l.

Lemma product_permutation l l' : Permutation l l' -> product l == product l'.
Proof.
  induction 1 as [|a l l' _ IH|a b l|l1 l2 l3 _ IH _ IH']; simpl;
    [reflexivity | now rewrite IH | ring | now rewrite IH, IH'].
Qed.

Lemma plus_permutation l l' : Permutation l l' -> plus l == plus l'.
Proof.
  induction 1 as [|a l l' _ IH|a b l|l1 l2 l3 _ IH _ IH']; simpl;
    [reflexivity | now rewrite IH | ring | now rewrite IH, IH'].
Qed.

Lemma product_nonneg l : (forall a, In a l -> 0 <= a) -> 0 <= product l.
Proof.
  induction l as [|a l IH]; simpl; intros H; [lra|].
  apply Qmult_le_0_compat; auto.
Qed.

(* All at most 1, or one above it. *)
Lemma all_or_one (p : Q -> bool) (l : list Q) :
  (forall a, In a l -> p a = false) \/ exists a l', Permutation l (a :: l') /\ p a = true.
Proof.
  induction l as [|a l [IH|(b & l' & Hp & Hb)]]; [now left| |].
  - destruct (p a) eqn:E; [right; now exists a, l | left].
    intros b [<-|I]; auto.
  - right; exists b, (a :: l'); split; [|easy].
    rewrite Hp; constructor.
Qed.

Lemma means n : forall l, length l = n -> (forall a, In a l -> 0 <= a) ->
  plus l <= Qnat n -> product l <= 1.
Proof.
  induction n as [|n IH]; intros l L pos S.
  { destruct l; [simpl; lra | easy]. }
  destruct (all_or_one (fun a => negb (Qle_bool a 1)) l) as [all|(b & l' & Hp & Hb)].
  { (* every factor is at most 1 *)
    clear IH L S; induction l as [|a l IHl]; simpl; [lra|].
    assert (Ha : a <= 1).
    { apply Qle_bool_iff; apply negb_false_iff, all; now left. }
    assert (Hl : product l <= 1) by (apply IHl; intros; [apply pos | apply all]; now right).
    assert (0 <= product l) by (apply product_nonneg; intros; apply pos; now right).
    assert (0 <= a) by (apply pos; now left); nra. }
  assert (B : 1 < b).
  { apply Qnot_le_lt; intros Q; apply Qle_bool_iff in Q; now rewrite Q in Hb. }
  rewrite (product_permutation _ _ Hp); rewrite (plus_permutation _ _ Hp) in S.
  assert (pos' : forall a, In a l' -> 0 <= a).
  { intros a I; apply pos; apply (Permutation_in _ (Permutation_sym Hp)); now right. }
  assert (L' : length l' = n) by (apply Permutation_length in Hp; simpl in Hp; lia).
  destruct (all_or_one (fun a => negb (Qle_bool 1 a)) l') as [all|(a & l'' & Hp' & Ha)].
  { (* then all the others are at least 1, and the sum too large *)
    exfalso; assert (G : forall m, (forall a, In a m -> 1 <= a) -> Qnat (length m) <= plus m).
    { induction m as [|a m IHm]; intros H; [apply Qle_refl|].
      simpl length; rewrite Qnat_S; simpl.
      assert (1 <= a) by (apply H; now left).
      assert (Qnat (length m) <= plus m) by (apply IHm; intros; apply H; now right); lra. }
    specialize (G l'); rewrite L' in G; rewrite Qnat_S in S; simpl in S.
    assert (Qnat n <= plus l'); [|lra].
    apply G; intros a I; apply Qle_bool_iff, negb_false_iff, all, I. }
  assert (A : a < 1).
  { apply Qnot_le_lt; intros Q; apply Qle_bool_iff in Q; now rewrite Q in Ha. }
  (* put a + b - 1 in the place of a and b *)
  assert (A0 : 0 <= a) by (apply pos', (Permutation_in _ (Permutation_sym Hp')); now left).
  assert (pos'' : forall c, In c l'' -> 0 <= c).
  { intros c I; apply pos', (Permutation_in _ (Permutation_sym Hp')); now right. }
  assert (Z : product ((a + b - 1) :: l'') <= 1).
  { apply IH.
    - apply Permutation_length in Hp'; simpl in *; lia.
    - intros c [<-|I]; [lra | auto].
    - simpl in *; rewrite (plus_permutation _ _ Hp') in S; rewrite Qnat_S in S; simpl in S; lra. }
  simpl in *; rewrite (product_permutation _ _ Hp'); simpl.
  assert (0 <= product l'') by (apply product_nonneg; auto).
  assert (a * b <= a + b - 1) by nra; nra.
Qed.

(* Of naturals: if the ratios a/b have a mean of at most 1, the product of the a is
   at most that of the b. *)
Lemma ratios {W} (a b : W -> nat) l :
  (forall w, In w l -> (0 < b w)%nat) ->
  total (fun w => Qnat (a w) / Qnat (b w)) l <= Qnat (length l) ->
  (prod a l <= prod b l)%nat.
Proof.
  intros pos S.
  assert (H : product (map (fun w => Qnat (a w) / Qnat (b w)) l) <= 1).
  { apply (means (length l)); [now rewrite map_length | |].
    - intros r I; apply in_map_iff in I; destruct I as (w & <- & I).
      apply Qdiv_nonneg; [apply Qnat_nonneg | apply Qnat_pos, pos, I].
    - clear pos; replace (plus _) with (total (fun w => Qnat (a w) / Qnat (b w)) l); [easy|].
      clear S; unfold total; induction l as [|w l IH]; simpl; congruence. }
  apply Qnat_le; clear S.
  assert (E : Qnat (prod a l)
              == product (map (fun w => Qnat (a w) / Qnat (b w)) l) * Qnat (prod b l)).
  { clear H; induction l as [|w l IH]; [unfold prod; simpl; ring|].
    rewrite !prod_cons, !Qnat_mult, IH by (intros; apply pos; now right); simpl; field.
    assert (0 < Qnat (b w)) by (apply Qnat_pos, pos; now left); lra. }
  rewrite E; generalize (Qnat_nonneg (prod b l)); nra.
Qed.
