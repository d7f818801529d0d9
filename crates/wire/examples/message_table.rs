//! Prints the table of messages as the page of the protocol must hold it.

fn main() {
    print!("{}", atoll_types::operation::table::markdown("message", atoll_wire::Message::KINDS));
}
