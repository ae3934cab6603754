(* The entropies of the messages sum to at least 2(P-1) n: step 5 of ../written/coding.md. *)

From Coq Require Import List Arith Bool QArith Lia.
From optcc Require Import Model Blocks Protocols Rational Products Means Entropy Coding Received
  Merging Alphabets Lengths.
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

(* What enters a rank, by the numbers of the messages. *)
Lemma entered_numbers {X V} block b (p : list (@message X V)) (l : list V) :
  length l = length p ->
  map Some (entered block b p l)
  = map (fun t => nth_error l t) (entered block b p (seq 0 (length p))).
Proof.
  intros L; change l with ([] ++ l) at 2; change 0 with (length (@nil V)) at 1.
  generalize (@nil V) as pre; revert l L; induction p as [|m p IH]; intros [|v l] L pre; try easy.
  injection L as L; unfold entered in *; simpl.
  assert (E := IH l L (pre ++ [v])).
  rewrite app_length, <- app_assoc, Nat.add_1_r in E; simpl in E.
  destruct (entering block b m); simpl; [|exact E]; f_equal; [|exact E].
  rewrite nth_error_app2, Nat.sub_diag by lia; easy.
Qed.

Lemma contents_length {X V} (none : X) x (p : list (@message X V)) s :
  length (contents none x s p) = length p.
Proof. revert s; induction p as [|m p IH]; intros s; simpl; auto. Qed.

Lemma combine_numbers {M} (p : list M) : map snd (combine p (seq 0 (length p))) = seq 0 (length p).
Proof.
  generalize 0 as k; induction p as [|m p IH]; intros k; simpl; [easy | now rewrite IH].
Qed.

Lemma split_square P M : 2 <= P -> (P - 1) * M * (P - 2) + 2 * (P - 1) * M = (P - 1) * M * P.
Proof. intros H; replace P with (P - 2 + 2) at 5 by lia; ring. Qed.

Section Entropies.
Context {X V Y : Type} `{Eq X} `{Eq V} `{Eq Y}.
Variables (none : X) (P : nat) (f : list X -> Y) (A : list X).
Hypothesis HP : 2 <= P.
Hypothesis solvable : forall x k a, length x = P -> k < P ->
  f (put k a x) = f x -> a = own none x k.
Hypothesis A_once : NoDup A.
Hypothesis A_some : 0 < length A.
Variable p : @protocol X V.
Hypothesis good : computes none P (choices A P) f p.

Notation self := (fun r : rank => r).
Notation cases := (choices A P).
Notation N := (length A ^ P).

(* A rank's own input: H(inputs | input) >= (P-1) n. *)
Lemma own_lacks r : r < P -> length A ^ ((P - 1) * N) <= ignorance (fun x => own none x r) cases.
Proof.
  intros Hr; assert (S := source_coding (fun x => own none x r) (fun _ => 1) (length A) cases).
  rewrite !choices_length, prod_const, Nat.pow_1_l, Nat.mul_1_r, <- Nat.pow_mul_r in S.
  replace (P * N) with ((P - 1) * N + N) in S by (destruct P; lia).
  rewrite Nat.pow_add_r in S.
  apply (Nat.mul_le_mono_pos_r _ _ (length A ^ N)); [apply Nat.neq_0_lt_0, Nat.pow_nonzero; lia|].
  apply S; [lia|]; rewrite total_const, Qmult_1_r.
  apply Qnat_le, NoDup_incl_length; [apply NoDup_nodup|].
  intros a I; apply in_different in I; destruct I as (x & I & <-).
  apply in_choices in I; apply I, nth_In; lia.
Qed.

Notation numbers := (seq 0 (length p)).
Notation spoken := (message_at none p).

(* H(what r has) <= H(input) + the sum of H(m) over what r receives. *)
Lemma view_subadditive z r : r < P ->
  length A ^ ((P - 1) * N) * prod (fun t => ignorance (spoken t) cases) (entered self r p numbers)
  <= ignorance (view none r (merged none z P self p)) cases
     * prod (fun _ => N ^ N) (entered self r p numbers).
Proof.
  intros Hr; set (ts := entered self r p numbers).
  assert (S := subadditive_list (fun x => own none x r) (map spoken ts) cases).
  rewrite map_length, choices_length, <- (prod_const (N ^ N) ts) in S.
  replace (prod (fun m => ignorance m cases) (map spoken ts))
    with (prod (fun t => ignorance (spoken t) cases) ts) in S
    by (clear; induction ts as [|t ts IH]; [easy|]; simpl map; now rewrite !prod_cons, IH).
  eapply Nat.le_trans; [apply Nat.mul_le_mono_r, (own_lacks r Hr)|].
  eapply Nat.le_trans; [exact S|]; apply Nat.mul_le_mono_r, tells_le.
  intros x y Ix Iy; unfold view, pair; intros [= Eo Em]; f_equal; [easy|].
  rewrite !heard_self by (try apply (proj1 good); now apply (choices_ranks A)).
  assert (E : forall x, map Some (entered self r p (said none x p)) = map (fun t => spoken t x) ts).
  { intros; apply entered_numbers, contents_length. }
  assert (inj : forall l l' : list V, map Some l = map Some l' -> l = l').
  { induction l as [|v l IH]; intros [|v' l']; simpl; try easy; intros [=]; f_equal; auto. }
  apply inj; rewrite !E; now rewrite !map_map in Em.
Qed.

Theorem entropies :
  length A ^ (2 * (P - 1) * N) * prod (fun t => ignorance (spoken t) cases) numbers
  <= (N ^ N) ^ length p.
Proof.
  destruct (some_choice A P A_some) as [z Iz].
  set (L := fun x => f (expand none z P self x)).
  assert (sol : forall x k a, length x = P -> k < P -> L (put k a x) = L x -> a = own none x k)
    by (intros; now apply (merged_solvable none z P P self (singletons P) f solvable x k a)).
  assert (B := lacking none P L HP sol (merged none z P self p) cases
    (merged_between none z P P self (singletons P) f A p good)
    (all_product_set none P A HP A_once A_some)
    (merged_know none z P P self (singletons P) f A p Iz good)).
  assert (R := Nat.pow_le_mono_l _ _ (P - 2) (result_lacks none P L A HP sol A_once A_some)).
  rewrite <- Nat.pow_mul_r in R.
  assert (S : prod (fun r => length A ^ ((P - 1) * N)
                 * prod (fun t => ignorance (spoken t) cases) (entered self r p numbers)) (seq 0 P)
              <= prod (fun r => ignorance (view none r (merged none z P self p)) cases
                 * prod (fun _ => N ^ N) (entered self r p numbers)) (seq 0 P)).
  { apply prod_le; intros r I; apply in_seq in I; apply view_subadditive; lia. }
  rewrite !prod_mul, !(prod_entered _ P self p), prod_const, seq_length, <- Nat.pow_mul_r in S
    by apply (proj1 good).
  set (passing := filter _ (combine p numbers)) in S.
  assert (T : length A ^ (2 * (P - 1) * N)
              * prod (fun mt => ignorance (spoken (snd mt)) cases) passing
              <= prod (fun _ => N ^ N) passing).
  { rewrite <- (split_square P N HP) in S.
    rewrite Nat.pow_add_r, <- Nat.mul_assoc in S.
    apply (Nat.mul_le_mono_pos_l _ _ (length A ^ ((P - 1) * N * (P - 2))));
      [apply Nat.neq_0_lt_0, Nat.pow_nonzero; lia|].
    eapply Nat.le_trans; [exact S|]; apply Nat.mul_le_mono_r.
    exact (Nat.le_trans _ _ _ B R). }
  (* what a rank tells itself counts, too *)
  assert (all : forall g : nat -> nat, prod g numbers = prod (fun mt => g (snd mt)) passing
    * prod (fun mt => g (snd mt))
           (filter (fun mt => negb (passes self (fst mt))) (combine p numbers))).
  { intros g; rewrite <- (combine_numbers p) at 1; rewrite prod_map; symmetry; apply prod_filter. }
  replace ((N ^ N) ^ length p) with (prod (fun _ => N ^ N) numbers)
    by now rewrite prod_const, seq_length.
  rewrite !all, Nat.mul_assoc; apply Nat.mul_le_mono; [exact T|].
  apply prod_le; intros mt _; rewrite <- (choices_length A P); apply ignorance_le.
Qed.
End Entropies.
