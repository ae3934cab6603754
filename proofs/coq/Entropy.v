(* Conditional entropies of a finite uniform distribution, by counting, for steps 3 to 5 of
   ../written/coding.md.

   l is a list of equally likely cases; a variable is a function of the case.
   Instead of the entropy H(case | f) stands the natural number

       ignorance f l  =  2 ^ (|l| H(case | f)).

   So no logarithm, and no real number, is needed: sums of entropies become
   products, and what is proved by ln x <= x - 1 elsewhere follows from the
   inequality between the means. *)

From Coq Require Import List Arith Bool QArith Lia Lqa.
From optcc Require Import Model Protocols Rational Products Means.
Import ListNotations.
Open Scope nat_scope.

Section Entropy.
Context {W : Type}.

Definition pair {U V} (f : W -> U) (g : W -> V) (w : W) : U * V := (f w, g w).

Lemma alike_def {U} `{Eq U} (f : W -> U) l w : alike f l w = length (having f (f w) l).
Proof. easy. Qed.

(* f tells g. *)
Definition tells {U V} (l : list W) (f : W -> U) (g : W -> V) : Prop :=
  forall w w', In w l -> In w' l -> f w = f w' -> g w = g w'.

Lemma alike_pos {U} `{Eq U} (f : W -> U) l w : In w l -> 0 < alike f l w.
Proof.
  intros I; rewrite !alike_def; assert (J : In w (having f (f w) l)) by now apply in_having.
  destruct (having f (f w) l); simpl in *; [easy | lia].
Qed.

Lemma ignorance_pos {U} `{Eq U} (f : W -> U) l : 0 < ignorance f l.
Proof. apply prod_pos; intros; now apply alike_pos. Qed.

Lemma filter_filter (p q : W -> bool) l :
  filter p (filter q l) = filter (fun w => q w && p w) l.
Proof.
  induction l as [|w l IH]; simpl; [easy|].
  destruct (q w) eqn:E; simpl; [destruct (p w)|]; now rewrite IH.
Qed.

Lemma filter_length_le (p q : W -> bool) l :
  (forall w, In w l -> p w = true -> q w = true) ->
  length (filter p l) <= length (filter q l).
Proof.
  induction l as [|w l IH]; simpl; intros H; [easy|].
  assert (IH' := IH (fun w' I => H w' (or_intror I))).
  destruct (p w) eqn:E; [rewrite (H w (or_introl eq_refl) E); simpl; lia|].
  destruct (q w); simpl; lia.
Qed.

Lemma having_length {U} `{Eq U} (f : W -> U) u l : length (having f u l) <= length l.
Proof.
  unfold having; induction l as [|w l IH]; simpl; [easy|].
  destruct (same (f w) u); simpl; lia.
Qed.

Lemma alike_pair {U V} `{Eq U} `{Eq V} (f : W -> U) (g : W -> V) l w :
  alike (pair f g) l w = alike f (having g (g w) l) w.
Proof.
  rewrite !alike_def; unfold having; rewrite filter_filter; f_equal; apply filter_ext; intros w'.
  apply eq_iff_eq_true; rewrite andb_true_iff, !same_true; unfold pair.
  split; [intros [=] | intros []; f_equal]; auto.
Qed.

(* ------------------------------------------------------------------------ *)
(* The chain rule: given f and g is given f, value by value of g              *)

Lemma chain_rule {U V} `{Eq U} `{Eq V} (f : W -> U) (g : W -> V) l :
  ignorance (pair f g) l = prod (fun v => ignorance f (having g v l)) (different g l).
Proof.
  unfold ignorance; rewrite (prod_different g); apply prod_ext; intros v _.
  apply prod_ext; intros w I; apply in_having in I; destruct I as [_ <-].
  apply alike_pair.
Qed.

Lemma tells_le {U V} `{Eq U} `{Eq V} (f : W -> U) (g : W -> V) l :
  tells l f g -> ignorance f l <= ignorance g l.
Proof.
  intros T; apply prod_le; intros w I; rewrite !alike_def; unfold having.
  apply filter_length_le; intros w' I' E; apply (proj1 (same_true _ _)) in E.
  rewrite same_true; now apply T.
Qed.

Lemma tells_eq {U V} `{Eq U} `{Eq V} (f : W -> U) (g : W -> V) l :
  tells l f g -> tells l g f -> ignorance f l = ignorance g l.
Proof. intros; apply Nat.le_antisymm; now apply tells_le. Qed.

(* ------------------------------------------------------------------------ *)
(* Sums over the values of a variable                                         *)

Lemma total_by_value {U} `{Eq U} (f : W -> U) (c : U -> Q) l :
  (total (fun w => c (f w) / Qnat (alike f l w)) l == total c (different f l))%Q.
Proof.
  rewrite (total_different f); apply total_ext; intros u I.
  apply in_different in I; destruct I as (w & I & E).
  assert (pos : (0 < Qnat (length (having f u l)))%Q).
  { apply Qnat_pos; rewrite <- E; now apply alike_pos. }
  transitivity (total (fun _ : W => (c u / Qnat (length (having f u l)))%Q) (having f u l)).
  - apply total_ext; intros w' I'; apply in_having in I'; destruct I' as [_ E'].
    rewrite !alike_def; rewrite E'; reflexivity.
  - rewrite total_const; field; lra.
Qed.

Lemma total_sizes {U} `{Eq U} (f : W -> U) l :
  (total (fun u => Qnat (length (having f u l))) (different f l) == Qnat (length l))%Q.
Proof.
  transitivity (total (fun _ : W => 1%Q) l); [|rewrite total_const; ring].
  rewrite (total_different f); apply total_ext; intros u _; rewrite total_const; ring.
Qed.

(* ------------------------------------------------------------------------ *)
(* Conditioning reduces entropy: if f tells g, H(m | f) <= H(m | g), where        *)
(* H(m | f) is H(case | f) - H(case | f, m)                                   *)

Theorem conditioning {U V M} `{Eq U} `{Eq V} `{Eq M}
    (f : W -> U) (g : W -> V) (m : W -> M) l :
  tells l f g ->
  ignorance f l * ignorance (pair g m) l <= ignorance (pair f m) l * ignorance g l.
Proof.
  intros T; unfold ignorance; rewrite <- !prod_mul; apply ratios.
  { intros w I; apply Nat.mul_pos_pos; now apply alike_pos. }
  (* write alike f as a sum, and change the order of summation *)
  set (r := fun w => (Qnat (alike (pair g m) l w) / Qnat (alike g l w)
                      / Qnat (alike (pair f m) l w))%Q).
  assert (E : (total (fun w => Qnat (alike f l w * alike (pair g m) l w)
                     / Qnat (alike (pair f m) l w * alike g l w)) l
               == total (fun w' => total r (having f (f w') l)) l)%Q).
  { transitivity (total (fun w => total (fun w' => if same (f w') (f w) then r w else 0%Q) l) l).
    - apply total_ext; intros w I.
      rewrite <- total_filter, total_const; fold (having f (f w) l); rewrite <- alike_def.
      unfold r; rewrite !Qnat_mult; field; split; apply Qnot_eq_sym, Qlt_not_eq, Qnat_pos;
        now apply alike_pos.
    - rewrite total_swap; apply total_ext; intros w' _; unfold having.
      rewrite total_filter; apply total_ext; intros w _; unfold same.
      destruct (eq_dec (f w') (f w)), (eq_dec (f w) (f w')); try easy; congruence. }
  rewrite E; clear E.
  transitivity (total (fun _ : W => 1%Q) l); [|rewrite total_const; lra].
  apply total_le; intros w' I'.
  (* in one class of f, within one class of g, the values of m count once each *)
  set (l' := having f (f w') l); set (k := length (having g (g w') l)).
  assert (k_pos : (0 < Qnat k)%Q) by now apply Qnat_pos, (alike_pos g).
  transitivity (total (fun w => (Qnat (length (having m (m w) (having g (g w') l))) / Qnat k)
                                / Qnat (alike m l' w)) l')%Q.
  { apply total_le; intros w I; apply in_having in I; destruct I as [I E].
    assert (G : g w = g w') by now apply T.
    apply Qle_lteq; right; unfold r.
    assert (E1 : alike g l w = k) by (rewrite alike_def; unfold k; now rewrite G).
    assert (E2 : alike (pair g m) l w = length (having m (m w) (having g (g w') l))).
    { rewrite alike_pair; rewrite !alike_def; unfold having; rewrite !filter_filter; rewrite G.
      f_equal; apply filter_ext; intros; apply andb_comm. }
    assert (E3 : alike (pair f m) l w = alike m l' w).
    { rewrite alike_pair; rewrite !alike_def; unfold l', having; rewrite !filter_filter; rewrite E.
      f_equal; apply filter_ext; intros; apply andb_comm. }
    now rewrite E1, E2, E3. }
  rewrite (total_by_value m
    (fun v => Qnat (length (having m v (having g (g w') l))) / Qnat k)%Q l').
  transitivity (total (fun v => / Qnat k * Qnat (length (having m v (having g (g w') l))))
                      (different m (having g (g w') l)))%Q.
  2:{ rewrite total_scale, total_sizes; fold k.
      rewrite Qmult_comm, Qmult_inv_r; [lra | intros Z; rewrite Z in k_pos; lra]. }
  transitivity (total (fun v => / Qnat k * Qnat (length (having m v (having g (g w') l))))
                      (different m l'))%Q.
  { apply total_le; intros v _; unfold Qdiv; rewrite Qmult_comm; lra. }
  (* the values that m takes in the class of f it takes in that of g *)
  apply total_incl; [apply NoDup_nodup | |].
  - intros v I; apply in_different in I; destruct I as (w & I & <-).
    apply in_having in I; destruct I as [I E].
    apply in_different; exists w; split; [apply in_having; split; [easy | now apply T] | easy].
  - intros v _; apply Qmult_le_0_compat; [apply Qinv_le_0_compat; lra | apply Qnat_nonneg].
Qed.

(* ------------------------------------------------------------------------ *)
(* Source coding: with costs c, whose inverses sum to k at most (Kraft), the mean *)
(* of log c is at least H(f) - log k, where H(f) is log |l| - H(case | f)      *)

Theorem source_coding {U} `{Eq U} (f : W -> U) (c : U -> nat) k l :
  (forall u, 0 < c u) ->
  (total (fun u => 1 / Qnat (c u)) (different f l) <= Qnat k)%Q ->
  length l ^ length l
  <= ignorance f l * k ^ length l * prod (fun w => c (f w)) l.
Proof.
  intros pos kraft.
  destruct l as [|w0 l0]; [simpl; unfold prod, ignorance; simpl; lia|].
  set (l := w0 :: l0) in *; set (n := length l).
  assert (n_pos : 0 < n) by apply Nat.lt_0_succ.
  assert (k_pos : 0 < k).
  { destruct k as [|k]; [exfalso; change (Qnat 0) with 0%Q in kraft | lia].
    assert (V : exists u us, different f l = u :: us).
    { assert (I : In (f w0) (different f l)) by (apply in_different; exists w0; simpl; auto).
      destruct (different f l) as [|u us]; [easy | now exists u, us]. }
    destruct V as (u & us & E); rewrite E, total_cons in kraft; cbv beta in kraft.
    assert (0 < 1 / Qnat (c u))%Q by (apply Qlt_shift_div_l; [now apply Qnat_pos | lra]).
    assert (0 <= total (fun u => 1 / Qnat (c u)) us)%Q; [|lra].
    transitivity (total (fun _ : U => 0%Q) us); [rewrite total_const; lra|].
    apply total_le; intros; apply Qdiv_nonneg; [lra | now apply Qnat_pos]. }
  replace (n ^ n) with (prod (fun _ => n) l) by apply prod_const.
  replace (k ^ n) with (prod (fun _ => k) l) by apply prod_const.
  unfold ignorance; rewrite <- !prod_mul.
  apply ratios.
  { intros w I; repeat apply Nat.mul_pos_pos; auto; now apply alike_pos. }
  fold n.
  transitivity (total (fun w => (Qnat n / Qnat k) * (1 / Qnat (c (f w)) / Qnat (alike f l w))) l)%Q.
  { apply total_le; intros w I; apply Qle_lteq; right; rewrite !Qnat_mult; field.
    repeat split; apply Qnot_eq_sym, Qlt_not_eq, Qnat_pos; auto; now apply alike_pos. }
  rewrite total_scale, (total_by_value f (fun u => 1 / Qnat (c u))%Q).
  assert (K : (0 < Qnat k)%Q) by now apply Qnat_pos.
  transitivity (Qnat n / Qnat k * Qnat k)%Q.
  - rewrite !(Qmult_comm (Qnat n / Qnat k)); apply Qmult_le_compat_r; [easy|].
    apply Qdiv_nonneg; [apply Qnat_nonneg | easy].
  - apply Qle_lteq; right; field; lra.
Qed.
End Entropy.
