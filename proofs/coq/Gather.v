(* All send their inputs to rank 0, and it sends the sum to all: no more is needed. *)

From Coq Require Import List Arith Bool Lia.
From optcc Require Import Model Protocols Products Received.
Import ListNotations.
Open Scope nat_scope.

Section Gather.
Variables (G : group) (P : nat).
Hypothesis HP : 1 <= P.

Notation message := (@message (carrier G) (carrier G)).
Notation own := (own (zero G)).
Notation post := (post (zero G)).

Definition up (r : rank) : message := Message r 0 (fun a _ => a).
Definition down (r : rank) : message := Message 0 r (fun a got => sum G (a :: got)).
Definition gather : list message := map up (seq 1 (P - 1)) ++ map down (seq 1 (P - 1)).

Lemma after_up x n : forall k s r, fold_left (post x) (map up (seq k n)) s r
  = if r =? 0 then s r ++ map (own x) (seq k n) else s r.
Proof.
  induction n as [|n IH]; intros k s r; simpl; [now rewrite app_nil_r; destruct (r =? 0)|].
  rewrite IH; unfold Protocols.post, content; simpl.
  destruct (r =? 0); [now rewrite <- app_assoc | easy].
Qed.

Lemma after_down x n : forall k s r, 1 <= k -> fold_left (post x) (map down (seq k n)) s r
  = if (k <=? r) && (r <? k + n) then s r ++ [sum G (own x 0 :: s 0)] else s r.
Proof.
  induction n as [|n IH]; intros k s r Hk; simpl fold_left.
  - destruct (Nat.leb_spec k r), (Nat.ltb_spec r (k + 0)); simpl; try easy; lia.
  - rewrite IH by lia; unfold Protocols.post, content; simpl to; simpl from; simpl says.
    destruct (Nat.leb_spec (S k) r), (Nat.ltb_spec r (S k + n)), (Nat.leb_spec k r),
      (Nat.ltb_spec r (k + S n)), (Nat.eqb_spec r k), (Nat.eqb_spec 0 k); simpl; try easy; lia.
Qed.

Lemma owns x : map (own x) (seq 0 (length x)) = x.
Proof.
  induction x as [|a x IH]; [easy|]; simpl; f_equal.
  rewrite <- seq_shift, map_map; exact IH.
Qed.

Lemma gather_received x r : length x = P -> r < P ->
  inbox (zero G) x gather r = if r =? 0 then tl x else [sum G x].
Proof.
  intros L Hr; unfold inbox, gather; rewrite fold_left_app, after_down, !after_up by lia.
  assert (E : map (own x) (seq 1 (P - 1)) = tl x /\ own x 0 :: tl x = x).
  { destruct x as [|a x]; [simpl in L; lia|]; split; [|easy].
    rewrite <- (owns x) at 2; simpl in L; replace (P - 1) with (length x) by lia.
    simpl; now rewrite <- seq_shift, map_map. }
  destruct E as [E F]; unfold nothing; rewrite !app_nil_l; change (0 =? 0) with true.
  cbv iota; rewrite E, F.
  destruct (Nat.eqb_spec r 0) as [->|]; [easy|].
  replace ((1 <=? r) && (r <? 1 + (P - 1))) with true; [easy|].
  symmetry; apply andb_true_iff; rewrite Nat.leb_le, Nat.ltb_lt; lia.
Qed.

Theorem attained : exists (p : @protocol (carrier G) (carrier G)) alphabets,
  sums G P p /\ in_alphabets (zero G) (inputs G P) p alphabets /\
  prod (@length (carrier G)) alphabets = order G ^ (2 * (P - 1)).
Proof.
  exists gather, (repeat (elements G) (2 * (P - 1))); split; [split | split].
  - intros m I; apply in_app_or in I; destruct I as [I|I]; apply in_map_iff in I;
      destruct I as (r & <- & I); apply in_seq in I; simpl; lia.
  - intros r Hr; exists (fun a got => if r =? 0 then sum G (a :: got) else hd (zero G) got).
    intros x Ix; apply choices_ranks in Ix; rewrite gather_received by easy.
    destruct (Nat.eqb_spec r 0) as [->|]; [|easy].
    destruct x; [simpl in Ix; lia | easy].
  - intros x _.
    assert (len : length (said (zero G) x gather) = 2 * (P - 1)).
    { assert (C : forall (p : list message) s, length (contents (zero G) x s p) = length p)
        by (induction p as [|m p IH]; intros; simpl; auto).
      unfold said; rewrite C; unfold gather; rewrite app_length, !map_length, !seq_length; lia. }
    rewrite <- len; generalize (said (zero G) x gather); clear.
    induction l as [|v l IH]; simpl; constructor; [apply each | exact IH].
  - generalize (2 * (P - 1)) as k; unfold order; induction k as [|k IH]; [easy|].
    simpl repeat; rewrite prod_cons, IH; easy.
Qed.
End Gather.
