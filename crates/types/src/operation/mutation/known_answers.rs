//! The encoding of every mutation, pinned: these bytes rest in log records and travel in messages.

use bytes::Bytes;

use crate::ids::{Epoch, ObjectName, Version};
use crate::operation::{Mutation, Seals};
use atoll_codec::Writer;

fn every_kind() -> Vec<Mutation> {
    let version = Version { epoch: Epoch(3), sequence: 77 };
    let object = ObjectName::new("object").unwrap();
    let key = Bytes::from_static(b"key");
    let value = Bytes::from_static(b"value");
    let seals = Seals { unit_bytes: 4096, seal_bytes: 28, bytes: Bytes::from(vec![1; 28]) };
    vec![
        Mutation::Write { offset: 4096, length: 5, seals: Some(seals) },
        Mutation::Write { offset: 8192, length: 4096, seals: None },
        Mutation::Zero { offset: 4096, length: 8192 },
        Mutation::Create,
        Mutation::Remove,
        Mutation::OmapSet { key: key.clone(), value: value.clone() },
        Mutation::OmapRemove { key: key.clone() },
        Mutation::OmapReplace { key: key.clone(), value: None, displaced_to: value.clone() },
        Mutation::OmapReplace { key: key.clone(), value: Some(value.clone()), displaced_to: key },
        Mutation::Truncate { size_bytes: 12_288 },
        Mutation::CloneFrom { source: object.clone() },
        Mutation::SetVersion { version },
        Mutation::ResetLog { head: version },
        Mutation::Split { pg_num_before: 16, pg_num: 64, is_whole: true },
        Mutation::SetShardOf { object_bytes: 5, shard_bytes: 4096, seal_unit_bytes: 8192, seal_bytes: 28 },
        Mutation::ClonePreImage { copy: object.clone() },
        Mutation::RemoveOther { object },
    ]
}

fn line_of(mutation: &Mutation) -> String {
    let mut writer = Writer::default();
    mutation.encode(&mut writer);
    let hex: String = writer.as_slice().iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!("{mutation:?}");
    let name = text.split([' ', '{']).next().unwrap_or_default();
    format!("{name} {hex} bound={}", mutation.control_bytes_bound())
}

#[test]
fn no_byte_of_any_mutation_has_changed() {
    let known: Vec<&str> = include_str!("known_answers.txt").lines().collect();
    let now: Vec<String> = every_kind().iter().map(line_of).collect();
    if std::env::var_os("ATOLL_PRINT_KNOWN_ANSWERS").is_some() {
        now.iter().for_each(|line| println!("{line}"));
    }
    assert_eq!(now, known);
}
