(* Protocols that tests/test_proofs.py gives to Coq: three ranks sum a bit each.  One is right, one is wrong for one of
   the eight inputs; and no statement stronger than that of the theorem holds. *)

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
