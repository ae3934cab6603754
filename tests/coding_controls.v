(* Protocols that tests/test_proofs.py gives to Coq: three ranks sum a bit each.  One is right, one is wrong for one of
   the eight inputs; and no statement stronger than that of the theorem holds.  Then two ranks: a cut of half of the
   linear program is exact for an exchange, and does not hold if one of them never hears the other. *)

From Coq Require Import List Arith Bool Lia.
From optcc Require Import Model Protocols Powers Headlines.
Import ListNotations.

Definition total (a : bool) (got : list bool) := fold_right xorb a got.
(* Wrong on one of eight inputs. *)
Definition wrong (a : bool) (got : list bool) := if forallb (fun b => b) (a :: got) then false else total a got.
Definition gather (last : bool -> list bool -> bool) : @protocol (carrier bit) bool :=
  [Message 1 0 (fun a _ => a); Message 2 0 (fun a _ => a); Message 0 1 total; Message 0 2 last].

Lemma claim : sums bit 3 (gather total).
Proof.
  split; [intros m I; simpl in I; intuition (subst; simpl; lia)|].
  intros r Hr; exists (fun a got => if r =? 0 then total a got else hd false got); intros x I.
  destruct r as [|[|[|r]]]; [| | |lia];
    simpl in I; repeat (destruct I as [<-|I]; [reflexivity|]); destruct I.
Qed.

Lemma refused : ~ sums bit 3 (gather wrong).
Proof.
  intros [_ good]; destruct (good 2) as [output O]; [lia|].
  assert (A := O [true; true; true]); assert (B := O [true; false; true]).
  cbv in A, B; rewrite A in B by tauto; discriminate B; tauto.
Qed.

Lemma tight : ~ (forall (p : @protocol (carrier bit) (carrier bit)) alphabets, sums bit 3 p ->
  in_alphabets (zero bit) (inputs bit 3) p alphabets ->
  order bit ^ (2 * (3 - 1) + 1) <= prod (@length (carrier bit)) alphabets).
Proof.
  intros more; destruct (coding_attained bit 3) as (p & al & good & speaks & E); [lia|].
  specialize (more p al good speaks); rewrite E in more; cbv in more; lia.
Qed.

(* Two ranks exchange their bits: what enters one is exactly what the broadcast cut asks for. *)
Definition exchange : @protocol (carrier bit) bool :=
  [Message 0 1 (fun a _ => a); Message 1 0 (fun a _ => a)].
Definition cut (more : nat) (p : @protocol (carrier bit) bool) (inside : nat -> bool) : Prop :=
  let M := order bit ^ 2 in
  let open := unknown (zero bit) (inputs bit 2) (sum bit) p in
  let into := numbered (enters inside) p in
  let at_it := numbered (touches inside) p in
  prod (fun t => ignorance (message_at (zero bit) p t) (inputs bit 2)) into * prod open at_it + more
  <= order bit ^ ((length (filter inside (seq 0 2)) - 1) * M) * (M ^ M) ^ length into
     * prod (fun t => open (S t)) at_it.

Lemma exchanged : sums bit 2 exchange.
Proof.
  split; [intros m I; simpl in I; intuition (subst; simpl; lia)|].
  intros r Hr; exists total; intros x I.
  destruct r as [|[|r]]; [| |lia];
    simpl in I; repeat (destruct I as [<-|I]; [reflexivity|]); destruct I.
Qed.

Lemma cut_holds : cut 0 exchange (fun r => r =? 1).
Proof.
  unfold cut; rewrite Nat.add_0_r; apply half_program_cuts; [lia | exact exchanged|].
  exists 1; split; [lia | reflexivity].
Qed.

Lemma cut_tight : ~ cut 1 exchange (fun r => r =? 1).
Proof. unfold cut; vm_compute; lia. Qed.

Lemma cut_refused : ~ cut 0 [Message 0 1 (fun a _ => a)] (fun r => r =? 0).
Proof. unfold cut; vm_compute; lia. Qed.

(* Who knows the sum alone does not know all inputs: without messages nothing is learned. *)
Lemma parts_refused : unknown (zero bit) (inputs bit 2) (sum bit) (@nil (@message (carrier bit) bool)) 0 <> 1.
Proof. vm_compute; lia. Qed.
