//! Who gets in, and who does not: the handshake as bytes in and bytes out.

use arx::admission::{Channel, Claim, GroupId, Handshake, Key, Nonce, Refusal};
use proptest::prelude::*;

const CONTROL: Claim = Claim { from: 3, to: 0, channel: Channel::Control };

fn key() -> Key {
    Key::new(Some("correct horse"), "job-1", 0)
}

fn dial(key: &Key, claim: Claim, nonce: u8) -> Handshake {
    Handshake::dial(key, claim, [nonce; 32])
}

fn accept(key: &Key, me: u32, nonce: u8) -> Handshake {
    Handshake::accept(key, me, [nonce; 32])
}

/// Moves up to `most` bytes of what `from` has to say. The bytes.
fn pass(from: &mut Handshake, to: &mut Handshake, most: usize) -> Vec<u8> {
    let count = from.outbox().len().min(to.wanted()).min(most);
    let bytes = from.outbox()[..count].to_vec();
    to.take(&bytes);
    from.sent(count);
    bytes
}

type Outcome = Option<Result<Claim, Refusal>>;

/// Lets both talk, `most` bytes at a time, until neither gets on. What each side came to, and what each said.
fn talk(dialler: &mut Handshake, accepter: &mut Handshake, most: usize) -> ([Outcome; 2], [Vec<u8>; 2]) {
    let mut said = [Vec::new(), Vec::new()];
    loop {
        let there = pass(dialler, accepter, most);
        let back = pass(accepter, dialler, most);
        if there.is_empty() && back.is_empty() {
            return ([dialler.outcome(), accepter.outcome()], said);
        }
        said[0].extend(there);
        said[1].extend(back);
    }
}

fn meet(dialler: &Key, accepter: &Key, claim: Claim, me: u32) -> [Outcome; 2] {
    talk(&mut dial(dialler, claim, 1), &mut accept(accepter, me, 2), usize::MAX).0
}

#[test]
fn the_same_secret_opens_in_pieces_of_any_size() {
    let group = GroupId { list: u64::MAX - 4, number: 1 << 40 };
    let of_all = [Channel::Control, Channel::Data(0), Channel::Data(7), Channel::Data(u16::MAX)];
    let of_groups = [Channel::Group(group, 3), Channel::Post(group), Channel::Post(GroupId::default())];
    for channel in of_all.into_iter().chain(of_groups) {
        let claim = Claim { from: 9, to: 4, channel };
        for most in [1, 2, 7, 31, 48, 87, 88, 1000] {
            let (outcomes, said) = talk(&mut dial(&key(), claim, 1), &mut accept(&key(), 4, 2), most);
            assert_eq!(outcomes, [Some(Ok(claim)), Some(Ok(claim))]);
            assert_eq!(said.map(|s| s.len()), [88 + 32, 48 + 40]);
        }
    }
}

#[test]
fn another_secret_opens_nothing_and_both_sides_know_why() {
    for other in [Some("correct horsf"), Some("correct hors"), Some(""), None] {
        let other = Key::new(other, "job-1", 0);
        assert_eq!(meet(&other, &key(), CONTROL, 0), [Some(Err(Refusal::WrongProof)); 2]);
        assert_eq!(meet(&key(), &other, CONTROL, 0), [Some(Err(Refusal::WrongProof)); 2]);
    }
}

#[test]
fn no_secret_meets_no_secret() {
    let open = Key::new(None, "job-1", 0);
    assert!(!open.is_secret() && !Key::new(Some(""), "job-1", 0).is_secret() && key().is_secret());
    assert_eq!(meet(&open, &open, CONTROL, 0), [Some(Ok(CONTROL)); 2]);
}

#[test]
fn another_job_or_generation_is_turned_away_by_name() {
    for other in [Key::new(Some("correct horse"), "job-2", 0), Key::new(Some("correct horse"), "job-1", 1)] {
        assert_eq!(meet(&other, &key(), CONTROL, 0), [Some(Err(Refusal::OtherJob)); 2]);
    }
}

#[test]
fn a_call_for_another_rank_or_from_oneself_is_turned_away() {
    assert_eq!(meet(&key(), &key(), CONTROL, 1), [Some(Err(Refusal::OtherRank)); 2]);
    let own = Claim { from: 2, to: 2, channel: Channel::Data(0) };
    assert_eq!(meet(&key(), &key(), own, 2), [Some(Err(Refusal::OtherRank)); 2]);
}

/// Each part of a claim is proved: whoever changes one on the way is found out by the side that did not.
#[test]
fn a_claim_changed_on_the_way_is_found_out() {
    for (at, to) in [(12, 1), (14, 1), (16, 5), (40, 77)] {
        let (mut dialler, mut accepter) = (dial(&key(), CONTROL, 1), accept(&key(), 0, 2));
        let mut greeting = dialler.outbox().to_vec();
        greeting[at] = to;
        dialler.sent(greeting.len());
        accepter.take(&greeting);
        let (outcomes, _) = talk(&mut dialler, &mut accepter, usize::MAX);
        assert!(matches!(outcomes, [Some(Err(_)), Some(Err(_))]), "byte {at}: {outcomes:?}");
    }
}

#[test]
fn a_changed_byte_anywhere_opens_nothing() {
    for (side, length) in [(0, 88 + 32), (1, 48 + 40)] {
        for at in 0..length {
            let (mut dialler, mut accepter) = (dial(&key(), CONTROL, 1), accept(&key(), 0, 2));
            let mut sent = [0; 2];
            loop {
                let (from, to) = if side == 0 { (&mut dialler, &mut accepter) } else { (&mut accepter, &mut dialler) };
                let mut bytes = from.outbox()[..from.outbox().len().min(to.wanted())].to_vec();
                if (sent[side]..sent[side] + bytes.len()).contains(&at) {
                    bytes[at - sent[side]] ^= 0x10;
                }
                sent[side] += bytes.len();
                from.sent(bytes.len());
                to.take(&bytes);
                let back = pass(to, from, usize::MAX);
                if bytes.is_empty() && back.is_empty() {
                    break;
                }
            }
            let deceived = if side == 0 { accepter.outcome() } else { dialler.outcome() };
            // Four bytes of the seal have no meaning.
            let idle = side == 1 && (48 + 4..48 + 8).contains(&at);
            let passed = deceived == Some(Ok(CONTROL));
            assert_eq!(passed, idle, "side {side}, byte {at}: {deceived:?}");
        }
    }
}

#[test]
fn a_recorded_conversation_opens_nothing_later() {
    let (outcomes, [dialled, accepted]) = talk(&mut dial(&key(), CONTROL, 1), &mut accept(&key(), 0, 2), usize::MAX);
    assert_eq!(outcomes, [Some(Ok(CONTROL)); 2]);
    // To an accepter, which has another nonce by now.
    let mut accepter = accept(&key(), 0, 3);
    accepter.take(&dialled[..88]);
    accepter.take(&dialled[88..]);
    assert_eq!(accepter.outcome(), Some(Err(Refusal::WrongProof)));
    // To a dialler.
    let mut dialler = dial(&key(), CONTROL, 4);
    dialler.take(&accepted[..48]);
    dialler.take(&accepted[48..]);
    assert_eq!(dialler.outcome(), Some(Err(Refusal::WrongProof)));
}

/// Somebody without the secret sends a rank's own words back to it, or plays two ranks against each other.
#[test]
fn a_rank_is_not_taken_in_by_its_own_words() {
    let mut dialler = dial(&key(), CONTROL, 1);
    let greeting = dialler.outbox().to_vec();
    dialler.take(&greeting[..48]);
    assert_eq!(dialler.outcome(), Some(Err(Refusal::NotArx)));

    // The proof of a dialler, as the seal for it.
    let mut dialler = dial(&key(), CONTROL, 1);
    let mut accepter = accept(&key(), 0, 2);
    pass(&mut dialler, &mut accepter, usize::MAX);
    pass(&mut accepter, &mut dialler, usize::MAX);
    let proof = dialler.outbox().to_vec();
    dialler.take(&[&[0; 8], &proof[..]].concat());
    assert_eq!(dialler.outcome(), Some(Err(Refusal::WrongProof)));

    // A rank that calls rank 3 of its own accord cannot be used to open a door as rank 3.
    let other = Claim { from: 5, to: 3, channel: Channel::Control };
    let mut victim = dial(&key(), other, 1);
    let mut door = accept(&key(), 0, 2);
    door.take(dial(&key(), CONTROL, 1).outbox());
    victim.take(door.outbox());
    door.sent(48);
    let greeting = victim.outbox().len() - 32;
    door.take(&victim.outbox()[greeting..]);
    assert_eq!(door.outcome(), Some(Err(Refusal::WrongProof)));
}

#[test]
fn another_version_is_known_as_such_by_both() {
    let (mut dialler, mut accepter) = (dial(&key(), CONTROL, 1), accept(&key(), 0, 2));
    let mut greeting = dialler.outbox().to_vec();
    greeting[8] += 1;
    accepter.take(&greeting);
    assert_eq!(accepter.outcome(), Some(Err(Refusal::OtherVersion)));
    dialler.take(accepter.outbox());
    assert_eq!(dialler.outcome(), Some(Err(Refusal::OtherVersion)));
}

#[test]
fn other_protocols_are_known_by_their_first_byte_and_told_nothing() {
    for start in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x16\x03\x01\x02\x00", b"SSH-2.0-x\r\n", b"\x00\x00\x00\x00", b"\xff"]
    {
        let (mut accepter, mut dialler) = (accept(&key(), 0, 2), dial(&key(), CONTROL, 1));
        accepter.take(start);
        assert_eq!(accepter.outcome(), Some(Err(Refusal::NotArx)));
        assert!(accepter.outbox().is_empty());
        dialler.take(start);
        assert_eq!(dialler.outcome(), Some(Err(Refusal::NotArx)));
    }
}

#[test]
fn only_who_has_said_nothing_is_silent() {
    let mut accepter = accept(&key(), 0, 2);
    assert!(accepter.is_silent());
    accepter.take(b"\0");
    assert!(!accepter.is_silent());
}

#[test]
fn the_key_does_not_show_itself() {
    assert_eq!(format!("{:?}", key()), "Key { secret: true, .. }");
}

proptest! {
    /// Whatever comes, in whatever pieces: no panic, no way in, and an end as soon as it cannot be right any more.
    #[test]
    fn garbage_opens_nothing(
        right in 0..73_usize, garbage in prop::collection::vec(any::<u8>(), 0..300), piece in 1..50_usize, nonce in any::<Nonce>()
    ) {
        let mut accepter = Handshake::accept(&key(), 0, nonce);
        let start = dial(&key(), CONTROL, 1).outbox()[..right].to_vec();
        let bytes = [&start[..], &garbage].concat();
        let mut rest = &bytes[..];
        while !rest.is_empty() && accepter.wanted() > 0 {
            let count = piece.min(rest.len()).min(accepter.wanted());
            accepter.take(&rest[..count]);
            rest = &rest[count..];
            let waiting = accepter.outbox().len();
            accepter.sent(waiting);
        }
        prop_assert!(!matches!(accepter.outcome(), Some(Ok(_))));
        prop_assert!(accepter.outcome().is_some() || rest.is_empty());
    }

    #[test]
    fn a_garbled_answer_opens_nothing(right in 0..49_usize, garbage in prop::collection::vec(any::<u8>(), 0..200)) {
        let (mut dialler, mut accepter) = (dial(&key(), CONTROL, 1), accept(&key(), 0, 2));
        pass(&mut dialler, &mut accepter, usize::MAX);
        let bytes = [&accepter.outbox()[..right], &garbage].concat();
        let mut rest = &bytes[..];
        while !rest.is_empty() && dialler.wanted() > 0 {
            let count = rest.len().min(dialler.wanted());
            dialler.take(&rest[..count]);
            rest = &rest[count..];
        }
        prop_assert!(!matches!(dialler.outcome(), Some(Ok(_))));
    }
}
