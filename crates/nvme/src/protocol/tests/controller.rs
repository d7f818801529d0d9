//! Controllers: properties, identify, features, log pages, events.

use bytes::Bytes;

use super::host::*;
use crate::protocol::*;

fn controller(subject: Subject) -> Controller {
    let config = ControllerConfig {
        controller_id: 7,
        subsystem: SUBSYSTEM.into(),
        serial: "0123456789abcdef0123".into(),
        firmware: "0.1.0".into(),
        host: HOST.into(),
        host_id: [9; 16],
        keep_alive_ms: 4500,
        queues: QueueConfig::default(),
        subject,
    };
    Controller::new(config, 0)
}

fn of_namespace() -> Controller {
    let mut controller = controller(Subject::Namespace { namespace: NAMESPACE, id: [3; 16] });
    enable(&mut controller);
    controller
}

fn enable(controller: &mut Controller) {
    assert!(!controller.is_ready());
    let ready = execute(controller, Command::new(0x7F, 0).dword(11, 0x14).dword(12, 0x46_0001)).unwrap();
    assert_eq!(ready.status, Status::Success);
    assert_eq!(property(controller, 0, 0x1C), Ok(1));
}

fn execute_as(controller: &mut Controller, id: u16, command: Command) -> Option<Response> {
    controller.execute(CommandId(id), &SubmissionEntry::read(&command.sqe))
}

fn execute(controller: &mut Controller, command: Command) -> Option<Response> {
    execute_as(controller, 0, command)
}

fn property(controller: &mut Controller, size: u32, offset: u32) -> Result<u64, Status> {
    let get = Command::new(0x7F, 0).dword(1, 4).dword(10, size).dword(11, offset);
    let response = execute(controller, get).unwrap();
    if response.status.is_success() { Ok(response.result) } else { Err(response.status) }
}

fn log(controller: &mut Controller, page: u32, dwords: u32, offset: u32) -> Result<Bytes, Status> {
    let get = Command::new(admin::GET_LOG_PAGE, 0).dword(10, (dwords - 1) << 16 | page).dword(12, offset);
    let response = execute(controller, get).unwrap();
    if response.status.is_success() { Ok(response.data) } else { Err(response.status) }
}

fn identify(controller: &mut Controller, structure: u32, namespace: u32) -> Result<Bytes, Status> {
    let get = Command::new(admin::IDENTIFY, 0).dword(1, namespace).dword(10, structure);
    let response = execute(controller, get).unwrap();
    if response.status.is_success() { Ok(response.data) } else { Err(response.status) }
}

#[test]
fn properties_and_reset() {
    let mut controller = of_namespace();
    assert_eq!(property(&mut controller, 1, 0).unwrap() & 0xFFFF, 127);
    assert_eq!(property(&mut controller, 0, 8), Ok(0x1_0400));
    for (size, offset) in [(0, 0), (1, 0x1C), (2, 8), (0, 0x20), (0, 0x10)] {
        assert_eq!(property(&mut controller, size, offset), Err(Status::InvalidField));
    }
    let queues = execute(&mut controller, Command::new(admin::SET_FEATURES, 0).dword(10, 7).dword(11, 0x3_0003));
    assert_eq!(queues.unwrap().result, 0x3_0003);
    assert!(controller.has_io_queue(4) && !controller.has_io_queue(5) && !controller.has_io_queue(0));
    execute(&mut controller, Command::new(0x7F, 0).dword(11, 0x14).dword(12, 0x46_0000));
    assert_eq!(controller.next_event(), Some(ControllerEvent::EndIoQueues));
    assert!(!controller.has_io_queue(1) && !controller.is_ready());
    // Another size of entries.
    execute(&mut controller, Command::new(0x7F, 0).dword(11, 0x14).dword(12, 0x45_0001));
    assert_eq!(property(&mut controller, 0, 0x1C), Ok(2), "that cannot be");
    let unknown = execute(&mut controller, Command::new(0x7F, 0).dword(11, 0x20).dword(12, 0x4E56_4D65));
    assert_eq!(unknown.unwrap().status, Status::InvalidField, "there is no reset of the subsystem");
}

#[test]
fn shutting_down_ends_the_queues() {
    let mut controller = of_namespace();
    execute(&mut controller, Command::new(0x7F, 0).dword(11, 0x14).dword(12, 0x46_4001));
    assert_eq!(controller.next_event(), Some(ControllerEvent::EndIoQueues));
    assert_eq!(property(&mut controller, 0, 0x1C), Ok(0b1001));
    assert!(!controller.is_ready());
}

#[test]
fn identify_describes_controller_and_namespaces() {
    let mut controller = of_namespace();
    let about = identify(&mut controller, 1, 0).unwrap();
    assert_eq!(&about[4..24], b"0123456789abcdef0123");
    assert_eq!((about[77], about[78], about[111]), (8, 7, 1));
    assert_eq!(u32::from_le_bytes(about[1792..1796].try_into().unwrap()), (64 + 32768) / 16);
    let namespace = identify(&mut controller, 0, 1).unwrap();
    assert_eq!(u64::from_le_bytes(namespace[..8].try_into().unwrap()), 2048);
    assert_eq!((namespace[130], &namespace[104..120]), (9, &[3; 16][..]));
    assert_eq!(identify(&mut controller, 2, 0).unwrap()[..5], [1, 0, 0, 0, 0]);
    assert_eq!(identify(&mut controller, 2, 1).unwrap()[..5], [0; 5]);
    assert_eq!(identify(&mut controller, 3, 1).unwrap()[..4], [2, 16, 0, 0]);
    for (structure, namespace, status) in [
        (0, 2, Status::InvalidNamespace),
        (0, u32::MAX, Status::InvalidNamespace),
        (2, u32::MAX, Status::InvalidNamespace),
        (3, 0, Status::InvalidNamespace),
        (6, 0, Status::InvalidField),
        (0x100, 1, Status::InvalidField),
    ] {
        assert_eq!(identify(&mut controller, structure, namespace), Err(status));
    }
}

#[test]
fn features() {
    let mut controller = of_namespace();
    let mut set = |id: u32, value: u32| {
        execute(&mut controller, Command::new(admin::SET_FEATURES, 0).dword(10, id).dword(11, value)).unwrap()
    };
    assert_eq!(set(7, 0xFFFF_0000).status, Status::InvalidField);
    assert_eq!(set(7, 0xFFFE_FFFE).result, 0xF_000F);
    assert_eq!(set(0x8000_0007, 0).status, Status::FeatureNotSaveable);
    assert_eq!(set(0x0B, 1 << 31).status, Status::InvalidField);
    assert_eq!(set(0x0F, 7100).status, Status::Success);
    assert_eq!(set(0x82, 0).status, Status::InvalidField);
    assert_eq!(set(0x81, 1).status, Status::FeatureNotChangeable);
    let mut get = |id: u32, value: u32| {
        execute(&mut controller, Command::new(admin::GET_FEATURES, 0).dword(10, id).dword(11, value)).unwrap()
    };
    assert_eq!((get(7, 0).result, get(0x0F, 0).result), (0xF_000F, 8000));
    assert_eq!(get(0x81, 1).data, Bytes::from(vec![9; 16]));
    assert_eq!(get(0x107, 0).status, Status::InvalidField);
    assert_eq!(get(6, 0).status, Status::InvalidField, "there is no volatile cache");
}

#[test]
fn a_silent_host_is_given_up() {
    let mut controller = of_namespace();
    assert_eq!(controller.deadline_ms(), Some(10_000), "4.5 s are rounded up");
    controller.heard(3000);
    assert_eq!(controller.deadline_ms(), Some(13_000));
    execute(&mut controller, Command::new(admin::SET_FEATURES, 0).dword(10, 0x0F));
    assert_eq!(controller.deadline_ms(), None);
}

#[test]
fn events_come_once_until_the_log_is_read() {
    let mut controller = of_namespace();
    let larger = Namespace { size_bytes: 2 << 20, ..NAMESPACE };
    controller.set_namespace(larger);
    assert_eq!(execute_as(&mut controller, 1, Command::new(admin::ASYNC_EVENT_REQUEST, 1)), None);
    assert_eq!(controller.next_event(), None, "the host does not want to hear of it");
    execute(&mut controller, Command::new(admin::SET_FEATURES, 0).dword(10, 0x0B).dword(11, 0x900));
    controller.set_namespace(NAMESPACE);
    let resized = Some(ControllerEvent::Complete(CommandId(1), Response::result(0x40002)));
    assert_eq!(controller.next_event(), resized);
    for id in 2..6 {
        assert_eq!(execute_as(&mut controller, id, Command::new(admin::ASYNC_EVENT_REQUEST, id)), None);
    }
    let refused = execute_as(&mut controller, 6, Command::new(admin::ASYNC_EVENT_REQUEST, 6)).unwrap();
    assert_eq!(refused.status, Status::AsyncEventLimit);
    controller.set_namespace(larger);
    assert_eq!(controller.next_event(), None, "it was told already");
    assert_eq!(log(&mut controller, 4, 1024, 0).unwrap()[..4], [1, 0, 0, 0]);
    assert_eq!(log(&mut controller, 4, 1024, 0).unwrap()[..4], [0, 0, 0, 0]);
    controller.set_namespace(Namespace { is_accessible: false, ..larger });
    let moved = Some(ControllerEvent::Complete(CommandId(2), Response::result(0xC0302)));
    assert_eq!(controller.next_event(), moved);
    let ana = log(&mut controller, 0x0C, 13, 0).unwrap();
    assert_eq!((ana[32], &ana[48..52]), (3, &[1, 0, 0, 0][..]));
}

#[test]
fn a_namespace_that_is_gone_is_none() {
    let mut controller = of_namespace();
    execute(&mut controller, Command::new(admin::SET_FEATURES, 0).dword(10, 0x0B).dword(11, 0x100));
    assert_eq!(execute_as(&mut controller, 1, Command::new(admin::ASYNC_EVENT_REQUEST, 1)), None);
    controller.set_namespace(Namespace { is_accessible: false, is_gone: true, ..NAMESPACE });
    let changed = Some(ControllerEvent::Complete(CommandId(1), Response::result(0x40002)));
    assert_eq!(controller.next_event(), changed);
    assert_eq!(identify(&mut controller, 2, 0).unwrap()[..], [0; 4096], "no namespace is listed");
    assert_eq!(identify(&mut controller, 0, 1).unwrap()[..], [0; 4096]);
    assert_eq!(identify(&mut controller, 3, 1), Err(Status::InvalidNamespace));
    assert_eq!(log(&mut controller, 0x0C, 12, 0).unwrap()[16..24], [1, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn log_pages() {
    let mut controller = of_namespace();
    for page in [1, 2, 3, 4, 5, 0x0C] {
        assert!(log(&mut controller, page, 4, 0).is_ok(), "{page}");
    }
    assert_eq!(log(&mut controller, 0x70, 4, 0), Err(Status::InvalidLogPage));
    assert_eq!(log(&mut controller, 2, 4, 2), Err(Status::InvalidField), "an offset of half a word");
    assert_eq!(log(&mut controller, 2, 4, 1024), Err(Status::InvalidField), "behind the end");
    let too_long = Command::new(admin::GET_LOG_PAGE, 0).dword(10, 0xFFFF_0002).dword(11, 0xFFFF);
    assert_eq!(execute(&mut controller, too_long).unwrap().status, Status::InvalidField);
}

#[test]
fn discovery() {
    let with = |port, security| DiscoveryEntry {
        subsystem: SUBSYSTEM.into(),
        address: ([10, 0, 0, 1], port).into(),
        security,
    };
    let entry = |port| with(port, ChannelSecurity::None);
    let mut controller = controller(Subject::Discovery(vec![entry(4420)]));
    enable(&mut controller);
    execute(&mut controller, Command::new(admin::SET_FEATURES, 0).dword(10, 0x0B).dword(11, 1 << 31));
    execute_as(&mut controller, 3, Command::new(admin::ASYNC_EVENT_REQUEST, 3));
    controller.set_discovery(vec![entry(4420)]);
    assert_eq!(controller.next_event(), None, "nothing has changed");
    let page = log(&mut controller, 0x70, 512, 0).unwrap();
    assert_eq!((page[0], page[8]), (1, 1));
    assert_eq!(&page[1024..1028], [3, 1, 2, 2]);
    assert_eq!(&page[1024 + 32..1024 + 37], b"4420 ");
    assert_eq!(&page[1024 + 256..][..SUBSYSTEM.len() + 1], format!("{SUBSYSTEM}\0").as_bytes());
    assert_eq!(&page[1024 + 512..][..9], b"10.0.0.1 ");
    controller.set_discovery(vec![entry(4420), entry(4421)]);
    let changed = Some(ControllerEvent::Complete(CommandId(3), Response::result(0x70F002)));
    assert_eq!(controller.next_event(), changed);
    let page = log(&mut controller, 0x70, 4, 0).unwrap();
    assert_eq!((page[0], page[8]), (2, 2));
    for (security, told) in
        [(ChannelSecurity::None, (2, 0)), (ChannelSecurity::Offered, (2, 2)), (ChannelSecurity::Required, (1, 2))]
    {
        controller.set_discovery(vec![with(4420, security)]);
        let page = log(&mut controller, 0x70, 512, 0).unwrap();
        assert_eq!((page[1024 + 3], page[1024 + 768]), told, "{security:?}");
    }
    assert_eq!(identify(&mut controller, 0, 1), Err(Status::InvalidField));
    assert_eq!(log(&mut controller, 2, 4, 0), Err(Status::InvalidLogPage));
}
