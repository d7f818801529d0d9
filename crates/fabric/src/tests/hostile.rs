//! Peers that send impossible values. Each loses its own link, with a reason, and no other.

use std::time::Instant;

use crate::error::FabricError;
use crate::message::{HEADER_BYTES, Head, REFERENCE_BYTES, Reference};
use crate::tests::pair::{DEADLINE, End, address, connect_to, pair, pattern, run, settings};

/// Sends a message as it is, without any of the rules.
fn send_raw(end: &mut End, message: &[u8]) {
    let link = end.fabric.links.get_mut(&end.id).unwrap();
    let device = &mut end.fabric.devices[link.device];
    let mut buffer = device.sends.take().unwrap();
    device.sends.bytes_mut(&mut buffer)[..message.len()].copy_from_slice(message);
    let endpoint = link.endpoint.as_ref().unwrap();
    let context = device.send(end.id, endpoint, buffer, message.len()).unwrap().unwrap();
    link.operations.push(context);
    link.sends += 1;
}

fn raw(end: &End, head: Head) -> Vec<u8> {
    let mut message = vec![0; HEADER_BYTES + REFERENCE_BYTES];
    let length =
        Head { token: end.fabric.links[&end.id].token_of_peer, ..head }.encode(&mut message, HEADER_BYTES);
    message.truncate(length);
    message
}

const NOTHING: Head = Head { token: 0, credits: 0, done: 0, reference: None };

/// Returns the victim's error when its peer does this.
fn end_by(attack: impl FnOnce(&mut End)) -> Option<FabricError> {
    let (mut attacker, mut victim) = pair(settings())?;
    attack(&mut attacker);
    let begun = Instant::now();
    loop {
        attacker.fabric.poll(&mut Vec::new());
        match victim.turn() {
            Err(error) => return Some(error),
            Ok(_) => assert!(begun.elapsed() < DEADLINE, "the victim does not mind"),
        }
    }
}

fn assert_found_out(what: &str, attack: impl FnOnce(&mut End)) {
    match end_by(attack) {
        Some(FabricError::Peer(reason)) => assert!(reason.contains(what), "{reason}"),
        Some(other) => panic!("{other}"),
        None => {}
    }
}

#[test]
fn impossible_messages_end_the_link() {
    assert_found_out("flags 0x8000", |end| {
        let mut message = raw(end, NOTHING);
        message[11] = 0x80;
        send_raw(end, &message);
    });
    assert_found_out("refers to 0 bytes", |end| {
        let reference = Some(Reference { address: 0, key: 0, length: 0 });
        let message = raw(end, Head { reference, ..NOTHING });
        send_raw(end, &message);
    });
    assert_found_out("was not given", |end| {
        let message = raw(end, Head { done: 1, ..NOTHING });
        send_raw(end, &message);
    });
    assert_found_out("it grants", |end| {
        let message = raw(end, Head { credits: u16::MAX, ..NOTHING });
        send_raw(end, &message);
    });
}

/// There are receives for other links that it could take away.
#[test]
fn a_peer_may_not_send_more_than_it_was_granted() {
    let Some((mut attacker, mut victim)) = pair(settings()) else { return };
    assert_eq!(victim.fabric.devices[0].post_shared(40), 40);
    let message = raw(&attacker, NOTHING);
    for _ in 0..20 {
        send_raw(&mut attacker, &message);
    }
    let begun = Instant::now();
    let error = loop {
        attacker.fabric.poll(&mut Vec::new());
        match victim.turn() {
            Err(error) => break error,
            Ok(_) => assert!(begun.elapsed() < DEADLINE, "the victim does not mind"),
        }
    };
    assert!(error.to_string().contains("more messages than it was granted"), "{error}");
    let usage = victim.fabric.usage();
    assert!(usage.posted >= usage.granted, "{usage:?}");
}

/// A key that does not exist is refused by the attacker's own side; the victim's link ends as when a device fails.
#[test]
fn a_reference_to_memory_that_is_not_there_ends_the_link() {
    let error = end_by(|end| {
        let reference = Some(Reference { address: 0x1000, key: 0xdead_beef, length: 1 << 20 });
        let message = raw(end, Head { reference, ..NOTHING });
        send_raw(end, &message);
    });
    if let Some(error) = error {
        assert!(matches!(error, FabricError::Failed { .. } | FabricError::Ended), "{error}");
    }
}

/// Messages with another link's token, or with none, reach no link; the neighbour's link stays open.
#[test]
fn messages_that_are_nobodys_are_dropped() {
    let Some((mut attacker, mut victim)) = pair(settings()) else { return };
    let mut neighbour = crate::tests::pair::fabric(settings()).unwrap();
    let (_, bound) = victim.fabric.listen(address(0)).unwrap();
    let (own, of_victim) = connect_to(&mut neighbour, &mut victim.fabric, bound);
    for wrong in 0..20_u8 {
        let mut message = raw(&attacker, NOTHING);
        message[..8].fill(wrong);
        send_raw(&mut attacker, &message);
        send_raw(&mut attacker, &message[..5]);
        attacker.fabric.poll(&mut Vec::new());
        victim.turn().unwrap();
    }
    let mut neighbour = End::new(neighbour, own);
    neighbour.queue(pattern(200_000, 5));
    let mut second = End::new(victim.fabric, of_victim);
    run(&mut neighbour, &mut second, |_, second| second.frames.len() == 1);
    assert_eq!(second.frames[0], pattern(200_000, 5));
}

/// Lets an end follow a reference, as if its peer had sent it.
fn refer_to(end: &mut End, reference: Reference) {
    let link = end.fabric.links.get_mut(&end.id).unwrap();
    let buffer = end.fabric.devices[link.device].receives.take().unwrap();
    link.credits = crate::credits::Credits::new();
    link.credits.arrived().unwrap();
    link.arrived.push_back(crate::link::Arrived {
        buffer,
        from: HEADER_BYTES,
        end: HEADER_BYTES,
        reference: Some(reference),
    });
}

/// A peer guesses the key of memory that is offered to another one, at the moment when it is offered.
#[test]
fn a_wrong_guess_of_a_key_ends_the_link_of_who_guesses() {
    let Some((mut attacker, mut victim)) = pair(settings()) else { return };
    let mut neighbour = crate::tests::pair::fabric(settings()).unwrap();
    let (_, bound) = victim.fabric.listen(address(0)).unwrap();
    let (own, of_victim) = connect_to(&mut neighbour, &mut victim.fabric, bound);
    let (mut neighbour, mut owner) = (End::new(neighbour, own), End::new(victim.fabric, of_victim));
    owner.queue(pattern(200_000, 3));
    let begun = Instant::now();
    let offered = loop {
        owner.fabric.poll(&mut Vec::new());
        owner.fabric.send(owner.id, &mut owner.to_send).unwrap();
        neighbour.fabric.poll(&mut Vec::new());
        let arrived = &neighbour.fabric.links[&neighbour.id].arrived;
        if let Some(reference) = arrived.iter().find_map(|arrived| arrived.reference) {
            break reference;
        }
        assert!(begun.elapsed() < DEADLINE, "the memory is offered");
    };
    refer_to(&mut attacker, Reference { key: offered.key ^ 1, ..offered });
    let begun = Instant::now();
    let error = loop {
        owner.fabric.poll(&mut Vec::new());
        attacker.fabric.poll(&mut Vec::new());
        match attacker.fabric.receive(attacker.id, &mut attacker.received, 1 << 20) {
            Ok(0) => assert!(begun.elapsed() < DEADLINE, "the guess fails"),
            Ok(bytes) => panic!("{bytes} bytes were read with a wrong key"),
            Err(error) => break error,
        }
    };
    assert!(!matches!(error, FabricError::Peer(_)), "{error}");
    // Whom it was offered to gets all of it.
    let begun = Instant::now();
    while neighbour.frames.is_empty() {
        owner.fabric.poll(&mut Vec::new());
        owner.fabric.send(owner.id, &mut owner.to_send).unwrap();
        neighbour.turn().unwrap();
        assert!(begun.elapsed() < DEADLINE, "the neighbour is served");
    }
    assert_eq!(neighbour.frames[0], pattern(200_000, 3));
}

/// Memory that was not offered cannot be read, and offered memory only until it is acknowledged.
#[test]
fn memory_is_readable_only_while_it_is_offered() {
    let Some((mut reader, mut owner)) = pair(settings()) else { return };
    owner.to_send.push_back(pattern(100_000, 9));
    owner.turn().unwrap();
    let reference = loop {
        owner.fabric.poll(&mut Vec::new());
        reader.fabric.poll(&mut Vec::new());
        if let Some(arrived) = reader.fabric.links[&reader.id].arrived.front() {
            break arrived.reference.unwrap();
        }
    };
    let mut arrived = 0;
    while arrived < 100_000 || owner.fabric.usage().referred_bytes > 0 {
        owner.turn().unwrap();
        reader.fabric.poll(&mut Vec::new());
        reader.fabric.receive(reader.id, &mut reader.received, 1 << 20).unwrap();
        arrived += reader.received.split().len();
    }
    // Once more, with the same key.
    refer_to(&mut reader, reference);
    let begun = Instant::now();
    loop {
        owner.fabric.poll(&mut Vec::new());
        reader.fabric.poll(&mut Vec::new());
        match reader.fabric.receive(reader.id, &mut reader.received, 1 << 20) {
            Ok(0) => assert!(begun.elapsed() < DEADLINE),
            Ok(bytes) => panic!("{bytes} bytes were read a second time"),
            Err(error) => break assert!(!matches!(error, FabricError::Peer(_)), "{error}"),
        }
    }
}
