(* Messages of varying length: Kraft's inequality, and the bound on their average. *)

From Coq Require Import List Arith Bool QArith Lia Lqa.
From optcc Require Import Model Protocols Rational Products Means Entropy Coding Received
  Merging Alphabets.
Import ListNotations.
Open Scope Q_scope.

(* ------------------------------------------------------------------------ *)
(* Kraft's inequality                                                         *)

Definition weight (b : bits) : Q := 1 / Qnat (2 ^ length b).

Lemma two_pos k : (0 < 2 ^ k)%nat.
Proof. apply Nat.neq_0_lt_0, Nat.pow_nonzero; lia. Qed.

Lemma weight_nonneg b : 0 <= weight b.
Proof. apply Qdiv_nonneg; [lra | apply Qnat_pos, two_pos]. Qed.

Lemma weight_cons c b : weight (c :: b) == (1 # 2) * weight b.
Proof.
  unfold weight; simpl length; rewrite Nat.pow_succ_r', Qnat_mult.
  assert (0 < Qnat (2 ^ length b)) by apply Qnat_pos, two_pos.
  change (Qnat 2) with 2; field; lra.
Qed.

(* The strings of l that begin with c, without it. *)
Definition after (c : bool) (l : list bits) : list bits :=
  flat_map (fun b => match b with [] => [] | d :: b => if eqb c d then [b] else [] end) l.

Lemma in_after c l b : In b (after c l) <-> In (c :: b) l.
Proof.
  unfold after; rewrite in_flat_map; split.
  - intros ([|d b'] & I & J); [easy|]; destruct (eqb c d) eqn:E; [|easy].
    apply eqb_prop in E; subst; destruct J as [->|[]]; easy.
  - intros I; exists (c :: b); split; [easy|]; rewrite eqb_reflx; now left.
Qed.

Lemma after_once c l : NoDup l -> NoDup (after c l).
Proof.
  induction 1 as [|b l Nb N IH]; simpl; [constructor|].
  destruct b as [|d b]; [easy|]; destruct (eqb c d) eqn:E; [|easy].
  apply eqb_prop in E; subst; constructor; [|easy]; now rewrite in_after.
Qed.

Lemma weight_after l : ~ In [] l ->
  total weight l == (1 # 2) * (total weight (after false l) + total weight (after true l)).
Proof.
  induction l as [|b l IH]; intros I; [unfold total; simpl; ring|].
  rewrite total_cons, IH by (intros J; apply I; now right).
  destruct b as [|[] b]; [exfalso; apply I; now left | |];
    simpl; rewrite weight_cons, total_cons; ring.
Qed.

Theorem kraft_bits l : NoDup l ->
  (forall a b, In a l -> In b l -> prefix a b -> a = b) -> total weight l <= 1.
Proof.
  assert (one : forall l, NoDup l -> (forall b, In b l -> b = []) -> total weight l <= 1).
  { intros [|a [|b l']] N E.
    - change (0 <= 1); lra.
    - rewrite (E a (or_introl eq_refl)); vm_compute; discriminate.
    - exfalso; inversion_clear N as [|? ? Na _]; apply Na; left.
      rewrite (E a), (E b); simpl; auto. }
  assert (bound : exists n, forall b, In b l -> (length b <= n)%nat).
  { exists (list_max (map (@length bool) l)); intros b I.
    assert (F := proj1 (list_max_le (map (@length bool) l) _) (le_n _)).
    rewrite Forall_forall in F; apply F, in_map, I. }
  destruct bound as [n B]; revert l B; induction n as [|n IH]; intros l B N pf.
  - apply one; [easy|]; intros b I; specialize (B b I); destruct b; [easy | simpl in B; lia].
  - destruct (in_dec (list_eq_dec bool_dec) [] l) as [I|I].
    + apply one; [easy|]; intros b J; symmetry; apply pf; auto; now exists b.
    + rewrite weight_after by easy.
      assert (half : forall c, total weight (after c l) <= 1).
      { intros c; apply IH; [| now apply after_once |].
        - intros b J; apply in_after, B in J; simpl in J; lia.
        - intros a b Ja Jb [d ->]; apply in_after in Ja; apply in_after in Jb.
          assert (E : c :: a = c :: a ++ d) by (apply pf; auto; now exists d).
          now injection E. }
      generalize (half false) (half true); lra.
Qed.

(* ------------------------------------------------------------------------ *)
(* Trees                                                                      *)

Lemma computes_know {X V Y} (none : X) P (f : list X -> Y) (p : tree X V) cases :
  tree_computes none P cases f p -> all_know none P f p cases.
Proof.
  intros [_ good] r Hr x y Ix Iy; unfold view, pair; intros [= Eo Eh].
  destruct (good r Hr) as (out & O); now rewrite <- !O, Eo, Eh.
Qed.

Section Trees.
Context {X Y : Type} `{Eq X} `{Eq Y}.
Variables (none : X) (P : nat) (f : list X -> Y) (A : list X).
Hypothesis HP : (2 <= P)%nat.
Hypothesis solvable : forall x k a, length x = P -> (k < P)%nat ->
  f (put k a x) = f x -> a = own none x k.
Hypothesis A_once : NoDup A.
Hypothesis A_some : (0 < length A)%nat.
Variable p : tree X bits.
Hypothesis inside : between P p.
Hypothesis know : all_know none P f p (choices A P).
Hypothesis free : tree_prefix_free none P (choices A P) p.

Lemma kraft_tree r : (r < P)%nat ->
  total (fun u => 1 / Qnat (2 ^ length (concat (snd u)))) (different (view none r p) (choices A P))
  <= Qnat (length A).
Proof.
  intros Hr; set (vs := different _ _).
  rewrite (total_different fst).
  transitivity (total (fun _ : X => 1) (different fst vs)).
  - apply total_le; intros a _.
    transitivity (total weight (map (fun u : X * list bits => concat (snd u)) (having fst a vs))).
    { rewrite total_map; apply Qle_refl. }
    assert (inj : forall u v, In u (having fst a vs) -> In v (having fst a vs) ->
              prefix (concat (snd u)) (concat (snd v)) -> u = v).
    { intros u v Iu Iv pre; apply in_having in Iu; apply in_having in Iv.
      destruct Iu as [Iu Eu], Iv as [Iv Ev]; apply in_different in Iu; apply in_different in Iv.
      destruct Iu as (x & Ix & <-), Iv as (y & Iy & <-); unfold view, pair in *; simpl in *.
      f_equal; [congruence|]; apply free; auto; congruence. }
    apply kraft_bits.
    + apply NoDup_map; [|apply NoDup_filter, NoDup_nodup].
      intros u v Iu Iv E; apply inj; auto; rewrite E; exists []; now rewrite app_nil_r.
    + intros b c Ib Ic pre; apply in_map_iff in Ib; apply in_map_iff in Ic.
      destruct Ib as (u & <- & Iu), Ic as (v & <- & Iv); now rewrite (inj u v).
  - rewrite total_const, Qmult_1_r; apply Qnat_le, NoDup_incl_length; [apply NoDup_nodup|].
    intros a I; apply in_different in I; destruct I as (u & I & <-).
    apply in_different in I; destruct I as (x & I & <-); simpl.
    apply in_choices in I; apply I, nth_In; lia.
Qed.

Lemma prod_two {W} (h : W -> nat) l : prod (fun w => 2 ^ h w)%nat l = (2 ^ list_sum (map h l))%nat.
Proof.
  induction l as [|w l IH]; [easy|]; rewrite prod_cons, IH; simpl map; simpl list_sum.
  now rewrite Nat.pow_add_r.
Qed.

Lemma two_concat (l : list bits) : prod (fun c => 2 ^ length c)%nat l = (2 ^ length (concat l))%nat.
Proof.
  induction l as [|c l IH]; [easy|]; rewrite prod_cons, IH; simpl concat.
  now rewrite app_length, Nat.pow_add_r.
Qed.

Theorem tree_average :
  (length A ^ (2 * (P - 1) * length A ^ P)
   <= 2 ^ list_sum (map (tree_bits none P p) (choices A P)))%nat.
Proof.
  assert (B := received_bound (V := bits) none P f A HP solvable A_once A_some p
    inside know (fun _ u => 2 ^ length (concat (snd u)))%nat (fun _ _ => two_pos _)
    kraft_tree).
  rewrite prod_swap in B; rewrite <- prod_two; eapply Nat.le_trans; [exact B|].
  apply prod_le; intros x _; unfold tree_bits; now rewrite <- prod_two.
Qed.
End Trees.

(* ------------------------------------------------------------------------ *)
(* Protocols in a fixed order                                                 *)

Lemma one_begins (a b c d : bits) : prefix (a ++ c) (b ++ d) -> prefix a b \/ prefix b a.
Proof.
  revert b; induction a as [|i a IH]; intros b [e E]; [left; now exists b|].
  destruct b as [|j b]; [right; now exists (i :: a)|].
  injection E as -> E.
  destruct (IH b) as [[k ->]|[k ->]]; [now exists e | left | right]; now exists k.
Qed.

Section Ranks.
Context {X Y : Type}.
Variables (none : X) (P : nat) (f : list X -> Y) (A : list X).
Variable p : @protocol X bits.
Hypothesis good : computes none P (choices A P) f p.
Hypothesis free : prefix_free none (choices A P) p.

Notation cases := (choices A P).

(* For the same inputs in block b, the bits that enter it are never the beginning of other
   bits that enter it: what prefix_free says of each message holds for all of them. *)
Lemma streams_end block b x y : In x cases -> In y cases ->
  (forall r, r < P -> block r = b -> own none x r = own none y r)%nat ->
  forall later before, p = before ++ later ->
  let s := inbox none x before in let t := inbox none y before in
  (forall r, r < P -> block r = b -> s r = t r)%nat ->
  prefix (concat (entered block b later (contents none x s later)))
         (concat (entered block b later (contents none y t later))) ->
  entered block b later (contents none x s later) = entered block b later (contents none y t later).
Proof.
  intros Ix Iy O; induction later as [|m later IH]; intros before E s t S pre; [easy|].
  assert (E' : p = (before ++ [m]) ++ later) by now rewrite <- app_assoc.
  assert (IH' := IH _ E'); unfold inbox in IH'; rewrite !fold_left_app in IH'.
  fold (inbox none x before) (inbox none y before) in IH'; simpl in IH'; fold s t in IH'.
  clear IH; unfold entered, entering in *; simpl in *.
  destruct (proj1 good m) as [Hf Ht]; [rewrite E; apply in_or_app; right; now left|].
  assert (next : (block (to m) = b -> content none x s m = content none y t m) ->
                 forall r, (r < P)%nat -> block r = b -> post none x s m r = post none y t m r).
  { intros C r Hr Er; unfold post; destruct (Nat.eqb_spec r (to m)) as [->|]; [|now apply S].
    now rewrite S, C. }
  destruct (Nat.eqb_spec (block (to m)) b) as [Et|Nt]; simpl in *.
  - destruct (Nat.eqb_spec (block (from m)) (block (to m))) as [Ef|Nf]; simpl in *.
    + apply IH'; [|exact pre]; apply next; intros _; unfold content.
      now rewrite O, S by (try easy; congruence).
    + assert (C : content none x s m = content none y t m).
      { assert (F := fun x y Ix Iy => free x y before m later Ix Iy E); simpl in F.
        destruct (one_begins _ _ _ _ pre) as [D|D]; [|symmetry]; apply F; auto; symmetry; auto. }
      f_equal; [exact C|]; apply IH'; [now apply next|].
      rewrite C in pre; destruct pre as [e pre]; exists e; rewrite <- app_assoc in pre.
      now apply app_inv_head in pre.
  - apply IH'; [now apply next | exact pre].
Qed.
End Ranks.
