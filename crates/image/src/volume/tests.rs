//! Requests with a failure in one part.

use atoll_client::ObjectClient;
use futures::executor::block_on;

use super::*;
use crate::memory_client::MemoryClient;

const POOL: PoolId = PoolId(1);
const OBJECT_BYTES: u64 = 4 * BLOCK;

fn volume(client: &MemoryClient) -> Volume<MemoryClient> {
    Volume::new(VolumeOf {
        client: client.clone(),
        name: "disk".into(),
        image_id: "1".into(),
        pool: POOL,
        object_bytes: OBJECT_BYTES,
        size_bytes: 4 * OBJECT_BYTES,
        sealing: Sealing::Off,
        fence: Condition::NotFenced { name: Bytes::from_static(b"img.1"), generation: 1 },
        kept_number: None,
        parent: None,
        moved_states: Vec::new(),
        ahead: None,
    })
}

/// A request that was dropped on its way could be carried out after the client's next ones.
#[test]
fn nothing_of_a_write_is_under_way_when_another_part_of_it_has_failed() {
    for seed in 0..20 {
        let client = MemoryClient::new(seed);
        let volume = volume(&client);
        client.refuse_writes_to(object_name("1", 1));
        block_on(async {
            let data = Bytes::from(vec![7; 3 * OBJECT_BYTES as usize]);
            volume.write(0, &data).await.unwrap_err();
            for object in [0, 2] {
                let written = client.read(POOL, object_name("1", object), 0, OBJECT_BYTES as u32).await;
                assert_eq!(written.unwrap().data[..], data[..OBJECT_BYTES as usize], "seed {seed}");
            }
        });
    }
}
