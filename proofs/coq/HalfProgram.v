(* Half of the linear program holds for every protocol, on any network: steps 0 to 4 of
   ../written/half-program.md, for protocols in a fixed order. *)

From Coq Require Import List Arith Bool QArith Lia.
From optcc Require Import Model Protocols Rational Products Means Entropy Given Coding Received
  Merging Alphabets Entropies Sums.
Import ListNotations.
Open Scope nat_scope.

(* ------------------------------------------------------------------------ *)
(* Products over the messages                                                 *)

Lemma prod_which {W} (which : W -> bool) (f : W -> nat) l :
  prod f (filter which l) = prod (fun w => if which w then f w else 1) l.
Proof. exact (fold_filter eq Nat.mul 1 Nat.mul_1_l f which l). Qed.

Lemma telescope (a : nat -> nat) T :
  prod a (seq 0 T) * a T = a 0 * prod (fun t => a (S t)) (seq 0 T).
Proof.
  induction T as [|T IH]; [change (prod _ (seq 0 0)) with 1; simpl; lia|].
  rewrite seq_S, !prod_app, !prod_cons; change (prod _ []) with 1; rewrite !Nat.mul_1_r.
  simpl Nat.add; rewrite IH; lia.
Qed.

Lemma at_split {M} (p : list M) m t k : In (m, t) (combine p (seq k (length p))) ->
  exists p1 p2, p = p1 ++ m :: p2 /\ t = k + length p1.
Proof.
  revert k; induction p as [|m' p IH]; intros k I; simpl in I; [easy|].
  destruct I as [[= -> ->]|I]; [exists [], p; simpl; split; [easy | lia]|].
  destruct (IH _ I) as (p1 & p2 & -> & ->); exists (m' :: p1), p2; simpl; split; [easy | lia].
Qed.

Section Chain.
Context {M : Type}.
Variables (p : list M) (a d : nat -> nat) (which : M -> bool) (b c : nat -> nat).
Notation T := (length p).
Hypothesis a_pos : forall t, 0 < a t.
Hypothesis d_pos : forall t, 0 < d t.
Hypothesis step : forall m t, In (m, t) (combine p (seq 0 T)) ->
  a t * d (S t) * (if which m then c t else 1) <= a (S t) * d t * (if which m then b t else 1).

Notation at_which := (map snd (filter (fun mt => which (fst mt)) (combine p (seq 0 T)))).

(* Message by message: a over d falls by b over c at most where [which], elsewhere not. *)
Lemma chain : a 0 * d T * prod c at_which <= a T * d 0 * prod b at_which.
Proof.
  set (mts := combine p (seq 0 T)) in *.
  assert (all : forall g : nat -> nat, prod g (seq 0 T) = prod (fun mt => g (snd mt)) mts)
    by (intros h; unfold mts; rewrite <- (combine_numbers p) at 1; now rewrite prod_map).
  assert (steps :
    prod (fun mt => a (snd mt) * d (S (snd mt)) * (if which (fst mt) then c (snd mt) else 1)) mts
    <= prod (fun mt => a (S (snd mt)) * d (snd mt) * (if which (fst mt) then b (snd mt) else 1)) mts)
    by (apply prod_le; intros [m t] I; now apply step).
  rewrite !prod_mul in steps.
  rewrite !prod_map, !(prod_which (fun mt : M * nat => which (fst mt))).
  rewrite <- (all a), <- (all d), <- (all (fun t => a (S t))), <- (all (fun t => d (S t))) in steps.
  set (C := prod (fun mt => if which (fst mt) then c (snd mt) else 1) mts) in *.
  set (B := prod (fun mt => if which (fst mt) then b (snd mt) else 1) mts) in *.
  assert (Ta := telescope a T); assert (Td := telescope d T).
  set (A0 := prod a (seq 0 T)) in *; set (A1 := prod (fun t => a (S t)) (seq 0 T)) in *.
  set (D0 := prod d (seq 0 T)) in *; set (D1 := prod (fun t => d (S t)) (seq 0 T)) in *.
  assert (0 < A1) by (apply prod_pos; intros; apply a_pos).
  assert (0 < D0) by (apply prod_pos; intros; apply d_pos).
  apply (Nat.mul_le_mono_pos_l _ _ (A1 * D0)); [nia|].
  replace (A1 * D0 * (a 0 * d T * C)) with ((a 0 * A1) * (D0 * d T) * C) by ring.
  rewrite <- Ta, Td.
  replace (A0 * a T * (d 0 * D1) * C) with (A0 * D1 * C * (a T * d 0)) by ring.
  replace (A1 * D0 * (a T * d 0 * B)) with (A1 * D0 * B * (a T * d 0)) by ring.
  now apply Nat.mul_le_mono_r.
Qed.
End Chain.

(* ------------------------------------------------------------------------ *)
(* What the first messages say                                                *)

Section First.
Context {X V : Type}.
Variable none : X.
Notation post := (post none).
Notation contents := (contents none).
Notation content := (content none).
Notation message := (@message X V).

Lemma contents_app x s (p1 p2 : list message) :
  contents x s (p1 ++ p2) = contents x s p1 ++ contents x (fold_left (post x) p1 s) p2.
Proof. revert s; induction p1 as [|m p1 IH]; intros s; simpl; [easy | now rewrite IH]. Qed.

(* Who has heard the same, received the same. *)
Lemma same_views x y (p : list message) s t :
  (forall r, s r = t r) -> contents x s p = contents y t p ->
  forall r, fold_left (post x) p s r = fold_left (post y) p t r.
Proof.
  revert s t; induction p as [|m p IH]; intros s t E C r; simpl in *; [easy|].
  injection C as Ev C; apply IH; [|easy]; intros i; unfold Protocols.post.
  now rewrite E, Ev.
Qed.

(* Step 1 and 2: with the input of k in y for that in x, the same is said, if in both. *)
Lemma same_said k x y (p : list message) s t u :
  k < length x -> (forall r, s r = t r) -> (forall r, s r = u r) ->
  contents x s p = contents y t p ->
  contents (put k (own none y k) x) u p = contents x s p.
Proof.
  intros L; revert s t u; induction p as [|m p IH]; intros s t u E F C; [easy|].
  simpl in *; injection C as Ev C.
  assert (Ew : content (put k (own none y k) x) u m = content x s m).
  { destruct (Nat.eq_dec (from m) k) as [K|N].
    - rewrite Ev; unfold content; rewrite K, own_put by easy; now rewrite <- F, E.
    - unfold content; rewrite own_put_other by easy; now rewrite F. }
  f_equal; [exact Ew|]; apply (IH _ (post y t m)); [| |exact C]; intros r; unfold Protocols.post.
  - now rewrite E, Ev.
  - now rewrite F, Ew.
Qed.
End First.

Lemma firstn_more {V} (l l' : list V) t :
  firstn (S t) l = firstn (S t) l' <-> firstn t l = firstn t l' /\ nth_error l t = nth_error l' t.
Proof.
  revert l l'; induction t as [|t IH]; intros [|a l] [|b l'];
    try (split; [discriminate | intros [? ?]; discriminate]); try (split; now simpl).
  - simpl; split; [intros [=]; subst; now split | intros [_ [=]]; now subst].
  - change (firstn (S (S t)) (a :: l)) with (a :: firstn (S t) l).
    change (firstn (S (S t)) (b :: l')) with (b :: firstn (S t) l').
    simpl nth_error; change (firstn (S t) (a :: l)) with (a :: firstn t l).
    change (firstn (S t) (b :: l')) with (b :: firstn t l'); specialize (IH l l'); split.
    + intros Q; injection Q as -> Q; apply IH in Q; destruct Q as [Q F]; split; congruence.
    + intros [Q F]; injection Q as -> Q; f_equal; apply IH; now split.
Qed.

(* ------------------------------------------------------------------------ *)
(* The steps                                                                  *)

Section Half.
Context {X V Y : Type} `{Eq X} `{Eq V} `{Eq Y}.
Variables (none : X) (P : nat) (f : list X -> Y) (A : list X).
Hypothesis HP : 2 <= P.
Hypothesis solvable : forall x k a, length x = P -> k < P ->
  f (put k a x) = f x -> a = own none x k.
Hypothesis A_once : NoDup A.
Hypothesis A_some : 0 < length A.
Variable p : @protocol X V.
Hypothesis good : computes none P (choices A P) f p.

Notation cases := (choices A P).
Notation g := (length A).
Notation M := (length A ^ P).
Notation T := (length p).
Notation first t := (fun x => firstn t (said none x p)).
Notation spoken t := (message_at none p t).
Notation open := (unknown none cases f p).

Lemma M_pos : 0 < M.
Proof. apply Nat.neq_0_lt_0, Nat.pow_nonzero; lia. Qed.

Lemma open_pos t : 0 < open t.
Proof. apply ignorance_pos. Qed.

(* One message more. *)
Lemma one_more {U} `{Eq U} (h : list X -> U) t :
  ignorance (pair (pair h (first t)) (spoken t)) cases = ignorance (pair h (first (S t))) cases.
Proof.
  assert (E : forall x y, first (S t) x = first (S t) y
                          <-> first t x = first t y /\ spoken t x = spoken t y)
    by (intros; apply firstn_more).
  apply tells_eq; intros x y _ _; unfold pair.
  - intros [= Eh Ef Em]; f_equal; [easy | apply E; now split].
  - intros Q; assert (Qh := f_equal fst Q); assert (Qf := f_equal snd Q).
    cbn [fst snd] in Qh, Qf; apply E in Qf; destruct Qf as [Qf Qm]; congruence.
Qed.

(* Who has h and what was said before, and can tell the next message, learns nothing. *)
Lemma no_news {U} `{Eq U} (h : list X -> U) t :
  tells cases (pair h (first t)) (spoken t) ->
  ignorance (pair h (first t)) cases <= ignorance (pair h (first (S t))) cases.
Proof.
  intros K; rewrite <- one_more; apply tells_le; intros x y Ix Iy E.
  unfold pair at 1 3; f_equal; [exact E | now apply K].
Qed.

(* Who can tell h' learns no more by it than who has h'. *)
Lemma no_more_news {U U'} `{Eq U} `{Eq U'} (h : list X -> U) (h' : list X -> U') t :
  tells cases (pair h (first t)) h' ->
  ignorance (pair h (first t)) cases * ignorance (pair h' (first (S t))) cases
  <= ignorance (pair h (first (S t))) cases * ignorance (pair h' (first t)) cases.
Proof.
  intros K; rewrite <- !one_more; apply conditioning; intros x y Ix Iy E.
  assert (Kx := K x y Ix Iy E); unfold pair in E |- *; injection E as _ E.
  now rewrite Kx, E.
Qed.

(* A message is told by its sender's input and what was said before. *)
Lemma sender_tells m t x y : In (m, t) (combine p (seq 0 T)) ->
  own none x (from m) = own none y (from m) -> first t x = first t y ->
  spoken t x = spoken t y.
Proof.
  intros I O F; destruct (at_split p m t 0 I) as (p1 & p2 & E & ->); simpl in F |- *.
  unfold message_at, said in *; rewrite E in F |- *; rewrite !contents_app in F |- *.
  assert (L : forall z, length (contents none z nothing p1) = length p1)
    by (intros; apply contents_length).
  rewrite !firstn_app, !L, !Nat.sub_diag in F; simpl firstn in F at 2 4.
  rewrite <- (L x) in F at 1; rewrite <- (L y) in F at 1.
  rewrite !firstn_all in F; simpl firstn in F; rewrite !app_nil_r in F.
  rewrite !nth_error_app2, !L, Nat.sub_diag by (rewrite L; lia); simpl.
  f_equal; unfold content; rewrite O.
  now rewrite (same_views none x y p1 nothing nothing (fun _ => eq_refl) F).
Qed.

(* Step 0: the whole transcript tells all inputs; *)
Lemma transcript_tells x y : In x cases -> In y cases ->
  said none x p = said none y p -> x = y.
Proof.
  intros Ix Iy E; assert (Lx := choices_ranks A P x Ix); assert (Ly := choices_ranks A P y Iy).
  apply (own_ext none); [congruence|]; intros k Hk; rewrite Lx in Hk.
  symmetry; apply solvable; [easy | easy |].
  set (z := put k (own none y k) x).
  assert (Iz : In z cases).
  { apply in_choices; unfold z; rewrite put_length; split; [easy|]; intros b I.
    destruct (in_put _ _ _ _ I) as [J| ->]; [now apply in_choices in Ix as [_ Ix]; apply Ix|].
    apply in_choices in Iy as [_ Iy]; apply Iy, nth_In; lia. }
  assert (Ez : said none z p = said none x p)
    by (apply (same_said none k x y p nothing nothing nothing); [lia | easy | easy | exact E]).
  set (r := if k =? 0 then 1 else 0).
  assert (r < P /\ r <> k) as [Hr Ne] by (unfold r; destruct (Nat.eqb_spec k 0); lia).
  destruct (proj2 good r Hr) as (out & O).
  rewrite <- (O z Iz), <- (O x Ix); unfold z at 1; rewrite own_put_other by easy; f_equal.
  exact (same_views none z x p nothing nothing (fun _ => eq_refl) Ez r).
Qed.

Lemma all_said {U} `{Eq U} (h : list X -> U) : ignorance (pair h (first T)) cases = 1.
Proof.
  apply Nat.le_antisymm; [|apply ignorance_pos].
  apply Nat.le_trans with (prod (fun _ => 1) cases); [|now rewrite prod_const, Nat.pow_1_l].
  apply prod_le; intros x Ix; rewrite alike_def.
  apply (NoDup_incl_length (l' := [x])); [now apply NoDup_filter, choices_once|].
  intros y I; apply in_having in I; destruct I as [Iy E]; left; symmetry.
  unfold pair in E; injection E as _ E; apply transcript_tells; try easy.
  rewrite <- (firstn_all (said none x p)), <- (firstn_all (said none y p)).
  unfold said in *; now rewrite !contents_length in *.
Qed.

Lemma open_end : open T = 1.
Proof. exact (all_said f). Qed.

Lemma open_start : open 0 = ignorance f cases.
Proof. apply tells_eq; intros x y _ _; simpl; [now intros [=] | congruence]. Qed.

Lemma open_start_le : open 0 <= g ^ ((P - 1) * M).
Proof. rewrite open_start; now apply (result_lacks none P f A HP). Qed.

(* H(f) is n at most if f has no more values than an input. *)
Lemma open_start_ge : length (different f cases) <= g -> g ^ ((P - 1) * M) <= open 0.
Proof.
  intros few; rewrite open_start.
  assert (coded := source_coding f (fun _ => 1) g cases).
  rewrite choices_length, prod_const, Nat.pow_1_l, Nat.mul_1_r, <- Nat.pow_mul_r in coded.
  replace (P * M) with ((P - 1) * M + M) in coded by (destruct P; lia).
  rewrite Nat.pow_add_r in coded.
  apply (Nat.mul_le_mono_pos_r _ _ (g ^ M)); [apply Nat.neq_0_lt_0, Nat.pow_nonzero; lia|].
  apply coded; [lia|]; rewrite total_const, Qmult_1_r; now apply Qnat_le.
Qed.

(* 0 <= g_m <= H(m). *)
Lemma open_falls t : open (S t) <= open t.
Proof.
  apply tells_le; intros x y _ _ E; injection E as Ef E; apply firstn_more in E.
  f_equal; [exact Ef | apply E].
Qed.

Lemma reduce_part t : open t * ignorance (spoken t) cases <= open (S t) * M ^ M.
Proof.
  assert (coded := subadditive (pair f (first t)) (spoken t) cases).
  now rewrite one_more, choices_length in coded.
Qed.

(* Step 1: what k sends; its input is news to nobody else than those who hear it. *)
Lemma reduce_cut k : k < P ->
  prod open (numbered (fun m => from m =? k) p)
  <= g ^ M * prod (fun t => open (S t)) (numbered (fun m => from m =? k) p).
Proof.
  intros Hk; set (o := fun x => own none x k).
  set (c := fun t => ignorance (pair o (first t)) cases).
  set (u := fun t => ignorance (pair all_same (first t)) cases).
  assert (C := chain p c u (fun m => from m =? k) (fun t => open (S t)) open).
  cbv beta in C; fold (numbered (fun m : @message X V => from m =? k) p) in C.
  assert (B : c 0 * u T * prod open (numbered (fun m => from m =? k) p)
              <= c T * u 0 * prod (fun t => open (S t)) (numbered (fun m => from m =? k) p)).
  { apply C; [intros; apply ignorance_pos | intros; apply ignorance_pos |].
    intros m t I; unfold c, u; destruct (Nat.eqb_spec (from m) k) as [E|_].
    - assert (N : ignorance (pair o (first t)) cases <= ignorance (pair o (first (S t))) cases).
      { apply no_news; intros x y _ _; unfold pair, o; intros [= Eo Ef].
        apply (sender_tells m); [easy | now rewrite E | easy]. }
      assert (F := no_more_news f (@all_same (list X)) t (fun _ _ _ _ _ => eq_refl)).
      change (ignorance (pair f (first t)) cases) with (open t) in F.
      change (ignorance (pair f (first (S t))) cases) with (open (S t)) in F.
      rewrite <- !Nat.mul_assoc; apply Nat.mul_le_mono; [easy | nia].
    - rewrite !Nat.mul_1_r.
      exact (no_more_news o (@all_same (list X)) t (fun _ _ _ _ _ => eq_refl)). }
  unfold c, u in B; rewrite !all_said, Nat.mul_1_r, Nat.mul_1_l in B.
  assert (L : g ^ ((P - 1) * M) <= ignorance (pair o (first 0)) cases).
  { eapply Nat.le_trans; [now apply (own_lacks none A P k)|].
    apply tells_le; intros x y _ _; unfold pair, o; simpl; congruence. }
  assert (R : ignorance (pair (@all_same (list X)) (first 0)) cases <= g ^ (P * M)).
  { eapply Nat.le_trans; [apply ignorance_le|]; rewrite choices_length.
    now rewrite <- Nat.pow_mul_r. }
  replace (P * M) with ((P - 1) * M + M) in R by (destruct P; lia).
  rewrite Nat.pow_add_r in R.
  apply (Nat.mul_le_mono_pos_l _ _ (g ^ ((P - 1) * M)));
    [apply Nat.neq_0_lt_0, Nat.pow_nonzero; lia|].
  rewrite Nat.mul_assoc; eapply Nat.le_trans; [apply Nat.mul_le_mono_r, L|].
  eapply Nat.le_trans; [exact B|]; now apply Nat.mul_le_mono_r.
Qed.

(* Steps 2 to 4. *)
Section Around.
Variable inside : rank -> bool.
Notation members := (filter inside (seq 0 P)).
Notation size := (length members).
Hypothesis some : exists r, r < P /\ inside r = true.

Notation block := (fun r => if inside r then 0 else 1).
Notation inputs := (fun x : list X => map (own none x) members).
Notation entering_at := (numbered (enters inside) p).
Notation got := (fun x => map (fun m => m x) (map (fun t => message_at none p t) entering_at)).
Notation has := (pair inputs got).

Lemma size_pos : 1 <= size.
Proof.
  destruct some as (r & Hr & E); assert (I : In r members)
    by (apply filter_In; split; [apply in_seq; lia | easy]).
  destruct members; simpl in *; [easy | lia].
Qed.

Lemma size_le : size <= P.
Proof.
  rewrite <- (seq_length P 0) at 2; generalize (seq 0 P) as l.
  induction l as [|r l IH]; simpl; [easy|]; destruct (inside r); simpl; lia.
Qed.

Lemma inputs_lack : g ^ ((P - size) * M) <= ignorance inputs cases.
Proof.
  assert (coded := source_coding inputs (fun _ => 1) (g ^ size) cases).
  rewrite choices_length, prod_const, Nat.pow_1_l, Nat.mul_1_r, <- !Nat.pow_mul_r in coded.
  assert (L := size_le); replace (P * M) with ((P - size) * M + size * M) in coded by nia.
  rewrite Nat.pow_add_r in coded.
  apply (Nat.mul_le_mono_pos_r _ _ (g ^ (size * M)));
    [apply Nat.neq_0_lt_0, Nat.pow_nonzero; lia|].
  apply coded; [lia|]; rewrite total_const, Qmult_1_r; apply Qnat_le.
  rewrite <- (choices_length A size); apply NoDup_incl_length; [apply NoDup_nodup|].
  intros v I; apply in_different in I; destruct I as (x & Ix & <-); apply in_choices in Ix.
  apply in_choices; split; [apply map_length|]; intros a I; apply in_map_iff in I.
  destruct I as (r & <- & I); apply filter_In in I; destruct I as [I _]; apply in_seq in I.
  apply Ix, nth_In; lia.
Qed.

(* Who has the inputs of the set and what enters it knows what enters, by number, *)
Lemma got_entered x y : has x = has y ->
  (forall t, In t entering_at -> spoken t x = spoken t y) /\
  entered block 0 p (said none x p) = entered block 0 p (said none y p).
Proof.
  intros E; assert (G := f_equal snd E); simpl in G; rewrite !map_map in G.
  assert (L : entering_at = entered block 0 p (seq 0 T)).
  { unfold numbered, entered; f_equal; apply filter_ext; intros mt; unfold entering, enters.
    now destruct (inside (from (fst mt))), (inside (to (fst mt))). }
  split.
  - intros t; revert G; generalize entering_at as ts; induction ts as [|s ts IH]; simpl; [easy|].
    intros [= Es G] [->|I]; [easy | now apply IH].
  - assert (inj : forall l l' : list V, map Some l = map Some l' -> l = l').
    { induction l as [|v l IH]; intros [|v' l']; simpl; try easy; intros [=]; f_equal; auto. }
    apply inj; rewrite !(entered_numbers block 0 p) by apply contents_length.
    now rewrite <- L.
Qed.

Lemma got_inputs x y r : has x = has y -> r < P -> inside r = true ->
  own none x r = own none y r.
Proof.
  intros E Hr Ir; assert (G := f_equal fst E); simpl in G.
  assert (I : In r members) by (apply filter_In; split; [apply in_seq; lia | easy]).
  revert G I; generalize members as l; induction l as [|s l IH]; simpl; [easy|].
  intros [= Es G] [->|I]; [easy | now apply IH].
Qed.

(* and the result. *)
Lemma has_tells : tells cases has f.
Proof.
  intros x y Ix Iy E; destruct some as (r & Hr & Ir), (proj2 good r Hr) as (out & O).
  rewrite <- (O x Ix), <- (O y Iy), (got_inputs x y r E Hr Ir); f_equal.
  apply (entered_tells none P block 0).
  - intros i Hi Bi; apply got_inputs; [easy | easy |].
    now destruct (inside i).
  - apply good.
  - easy.
  - now apply got_entered.
  - easy.
  - now rewrite Ir.
Qed.

(* What the set lacks is no more than what is said outside of it. *)
Lemma lacks_outside :
  ignorance has cases
  * prod (fun t => open (S t)) (numbered (fun m => negb (touches inside m)) p)
  <= prod open (numbered (fun m => negb (touches inside m)) p).
Proof.
  set (a := fun t => ignorance (pair has (first t)) cases).
  assert (C := chain p a (fun _ => 1) (fun m => negb (touches inside m)) open
    (fun t => open (S t))).
  fold (numbered (fun m : @message X V => negb (touches inside m)) p) in C.
  assert (B := C (fun t => ignorance_pos _ _) (fun _ => Nat.lt_0_1)); clear C.
  unfold a in B at 3 4; rewrite all_said, !Nat.mul_1_r, Nat.mul_1_l in B.
  eapply Nat.le_trans; [|apply B].
  - apply Nat.mul_le_mono_r, tells_le; intros x y _ _; unfold pair; simpl; congruence.
  - intros m t I; rewrite !Nat.mul_1_r; destruct (at_split p m t 0 I) as (p1 & p2 & Ep & _).
    assert (ends : from m < P /\ to m < P)
      by (apply (proj1 good); rewrite Ep; apply in_or_app; right; now left).
    unfold touches; destruct (inside (from m)) eqn:If; simpl.
    + rewrite !Nat.mul_1_r; apply no_news; intros x y _ _ E.
      apply (sender_tells m); [easy | | exact (f_equal snd E)].
      apply got_inputs; [exact (f_equal fst E) | easy | easy].
    + destruct (inside (to m)) eqn:It; simpl.
      * rewrite !Nat.mul_1_r; apply no_news; intros x y _ _ E.
        apply (proj1 (got_entered x y (f_equal fst E))).
        unfold numbered; apply in_map_iff; exists (m, t); split; [easy|].
        apply filter_In; split; [easy|]; unfold enters; simpl; now rewrite If, It.
      * apply no_more_news; intros x y Ix Iy E; apply has_tells; [easy | easy |].
        exact (f_equal fst E).
Qed.

Theorem broadcast_cut :
  prod (fun t => ignorance (spoken t) cases) entering_at * prod open (numbered (touches inside) p)
  <= g ^ ((size - 1) * M) * (M ^ M) ^ length entering_at
     * prod (fun t => open (S t)) (numbered (touches inside) p).
Proof.
  assert (B : ignorance inputs cases * prod (fun t => ignorance (spoken t) cases) entering_at
              <= ignorance has cases * (M ^ M) ^ length entering_at).
  { assert (Q := subadditive_list inputs (map (fun t => message_at none p t) entering_at) cases).
    rewrite map_length, prod_map, choices_length in Q; exact Q. }
  assert (D := lacks_outside); assert (I := inputs_lack).
  set (E := prod (fun t => ignorance (spoken t) cases) entering_at) in *.
  set (K := (M ^ M) ^ length entering_at) in *.
  assert (both : forall h : nat -> nat, prod h (numbered (touches inside) p)
    * prod h (numbered (fun m => negb (touches inside m)) p) = prod h (seq 0 T)).
  { intros h; rewrite <- (combine_numbers p) at 1; unfold numbered; rewrite !prod_map.
    apply prod_filter. }
  assert (Tel := telescope open T); rewrite open_end, Nat.mul_1_r in Tel.
  rewrite <- (both open), <- (both (fun t => open (S t))) in Tel.
  set (out0 := prod open (numbered (fun m => negb (touches inside m)) p)) in *.
  set (out1 := prod (fun t => open (S t)) (numbered (fun m => negb (touches inside m)) p)) in *.
  set (in0 := prod open (numbered (touches inside) p)) in *.
  set (in1 := prod (fun t => open (S t)) (numbered (touches inside) p)) in *.
  assert (pos : 0 < out1) by (apply prod_pos; intros; apply open_pos).
  assert (start := open_start_le); assert (S1 := size_pos); assert (S2 := size_le).
  replace ((P - 1) * M) with ((P - size) * M + (size - 1) * M) in start by nia.
  rewrite Nat.pow_add_r in start.
  set (G1 := g ^ ((P - size) * M)) in *; set (G2 := g ^ ((size - 1) * M)) in *.
  assert (posG : 0 < G1) by (apply Nat.neq_0_lt_0, Nat.pow_nonzero; lia).
  set (h := ignorance has cases) in *; set (i := ignorance inputs cases) in *.
  (* G1 E <= i E <= h K, h out1 <= out0, in0 out0 = open 0 in1 out1 *)
  apply (Nat.mul_le_mono_pos_l _ _ (G1 * out1)); [nia|].
  replace (G1 * out1 * (E * in0)) with (G1 * (E * out1 * in0)) by ring.
  eapply Nat.le_trans; [apply Nat.mul_le_mono_r, I|].
  replace (i * (E * out1 * in0)) with (i * E * (out1 * in0)) by ring.
  eapply Nat.le_trans; [apply Nat.mul_le_mono_r, B|].
  replace (h * K * (out1 * in0)) with (K * in0 * (h * out1)) by ring.
  eapply Nat.le_trans; [apply Nat.mul_le_mono_l, D|].
  replace (K * in0 * out0) with (K * (in0 * out0)) by ring.
  rewrite Tel; replace (K * (open 0 * (in1 * out1))) with (K * in1 * out1 * open 0) by ring.
  eapply Nat.le_trans; [apply Nat.mul_le_mono_l, start|].
  apply Nat.eq_le_incl; ring.
Qed.
End Around.
End Half.

(* ------------------------------------------------------------------------ *)
(* Sums                                                                       *)

Section Group.
Context {V : Type} `{Eq V}.
Variables (G : group) (P : nat) (p : @protocol (carrier G) V).
Hypothesis HP : 2 <= P.
Hypothesis good : sums G P p.
Notation M := (order G ^ P).
Notation open := (unknown (zero G) (inputs G P) (sum G) p).

Let solvable : forall x k a, length x = P -> k < P ->
  sum G (put k a x) = sum G x -> a = own (zero G) x k.
Proof. intros x k a L Hk; apply sum_solvable; lia. Qed.

Theorem half_parts :
  open 0 = order G ^ ((P - 1) * M) /\ open (length p) = 1 /\
  (forall t, open (S t) <= open t) /\
  (forall t, open t * ignorance (message_at (zero G) p t) (inputs G P) <= open (S t) * M ^ M) /\
  (forall k, k < P ->
     prod open (numbered (fun m => from m =? k) p)
     <= order G ^ M * prod (fun t => open (S t)) (numbered (fun m => from m =? k) p)).
Proof.
  assert (once_ := once G); assert (some_ := order_pos G).
  split; [apply Nat.le_antisymm | split; [|split; [|split]]].
  - now apply open_start_le.
  - apply open_start_ge; try easy.
    apply NoDup_incl_length; [apply NoDup_nodup | intros v _; apply each].
  - now apply open_end.
  - now apply open_falls.
  - now apply reduce_part.
  - now apply reduce_cut.
Qed.

Theorem half_cuts inside : (exists r, r < P /\ inside r = true) ->
  let size := length (filter inside (seq 0 P)) in
  let into := numbered (enters inside) p in
  let at_it := numbered (touches inside) p in
  prod (fun t => ignorance (message_at (zero G) p t) (inputs G P)) into * prod open at_it
  <= order G ^ ((size - 1) * M) * (M ^ M) ^ length into * prod (fun t => open (S t)) at_it.
Proof.
  assert (once_ := once G); assert (some_ := order_pos G); intros some; now apply broadcast_cut.
Qed.
End Group.
