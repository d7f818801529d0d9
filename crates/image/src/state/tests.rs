//! A state is never taken for another one: a vanished object is an error.

use atoll_client::ObjectClient;
use atoll_types::{Mutation, WriteRequest};
use futures::executor::block_on;

use super::*;
use crate::keeping::keep_state;
use crate::memory_client::MemoryClient;

const POOL: PoolId = PoolId(1);

fn state(client: &MemoryClient, number: Option<u64>) -> State<MemoryClient> {
    State {
        client: client.clone(),
        image_id: "1".into(),
        pool: POOL,
        object_bytes: 4 * BLOCK,
        size_bytes: 4 * BLOCK,
        number,
        sealing: Rc::new(Sealing::Off),
        parent: None,
        places: Places::default(),
    }
}

async fn write(client: &MemoryClient, byte: u8) {
    let request = WriteRequest {
        object: object_name("1", 0),
        conditions: Vec::new(),
        mutations: vec![Mutation::Write { offset: 0, length: BLOCK as u32, seals: None }],
        payload: vec![byte; BLOCK as usize].into(),
        payload_sealed: false,
    };
    client.send_write(POOL, request).await.unwrap();
}

async fn remove(client: &MemoryClient, object: ObjectName) {
    client.change(POOL, object, Vec::new(), vec![Mutation::Remove]).await.unwrap();
}

async fn first_byte(state: &State<MemoryClient>) -> Result<u8, ImageError> {
    state.read_blocks(0, BLOCK).await.map(|block| block[0])
}

#[test]
fn a_snapshot_keeps_its_data_when_the_object_changes() {
    let client = MemoryClient::new(1);
    block_on(async {
        write(&client, 1).await;
        let snapshot = state(&client, Some(1));
        assert_eq!(first_byte(&snapshot).await.unwrap(), 1);
        keep_state(&client, POOL, "1", 0, 1, None).await.unwrap();
        write(&client, 2).await;
        assert_eq!(first_byte(&snapshot).await.unwrap(), 1);
        remove(&client, object_name("1", 0)).await;
        assert_eq!(first_byte(&snapshot).await.unwrap(), 1);
    });
}

/// The snapshot was removed: the object has later data.
#[test]
fn later_data_is_never_read_in_place_of_a_snapshot() {
    for is_removed in [false, true] {
        let client = MemoryClient::new(2);
        block_on(async {
            write(&client, 1).await;
            let snapshot = state(&client, Some(1));
            assert_eq!(first_byte(&snapshot).await.unwrap(), 1);
            write(&client, 2).await;
            if is_removed {
                remove(&client, object_name("1", 0)).await;
            }
            let error = first_byte(&snapshot).await.unwrap_err();
            assert!(error.is_vanished(), "{error}");
        });
    }
}

#[test]
fn a_kept_state_that_has_vanished_is_not_looked_for_elsewhere() {
    let client = MemoryClient::new(3);
    block_on(async {
        write(&client, 1).await;
        keep_state(&client, POOL, "1", 0, 1, None).await.unwrap();
        write(&client, 2).await;
        let snapshot = state(&client, Some(1));
        assert_eq!(first_byte(&snapshot).await.unwrap(), 1);
        remove(&client, kept_name("1", 0, 1)).await;
        let error = first_byte(&snapshot).await.unwrap_err();
        assert!(error.is_vanished(), "{error}");
    });
}

#[test]
fn an_object_of_a_removed_image_does_not_read_as_zeros() {
    let client = MemoryClient::new(4);
    block_on(async {
        write(&client, 1).await;
        let image = state(&client, None);
        assert_eq!(first_byte(&image).await.unwrap(), 1);
        remove(&client, object_name("1", 0)).await;
        let error = first_byte(&image).await.unwrap_err();
        assert!(error.is_vanished(), "{error}");
    });
}
