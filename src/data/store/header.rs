//! The first bytes of a store: what it holds and where.

use bytemuck::{Pod, Zeroable};

/// The first bytes of every store. Neither a text nor a copy with translated line ends begins like this.
pub const MAGIC: [u8; 8] = *b"\x89SETS\r\n\x1a";

/// The version that this code writes, and the only one that it reads.
pub const VERSION: u32 = 1;

/// Sections begin at multiples of this.
pub const ALIGNMENT: u64 = 64;

/// Stands for "no index" in [`Header::least`] and [`Header::largest`].
pub const NO_INDEX: u32 = u32::MAX;

/// What a section holds; the number is its place in [`Header::sections`].
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub enum Section {
    /// f32 `[N, F]`
    Features,
    /// u64 `[Q + 1]`
    Offsets,
    /// f32 `[N]`, or empty
    Labels,
    /// u64 `[N]`
    Positions,
    /// The ids of all queries, UTF-8
    QueryIds,
    /// u64 `[Q]`: where each ends
    QueryIdEnds,
    /// The ids of all documents, UTF-8
    DocumentIds,
    /// u64 `[N]`: where each ends
    DocumentIdEnds,
    /// f32 `[R, N]`
    InitialScores,
}

/// Number of sections.
pub const SECTIONS: usize = Section::InitialScores as usize + 1;

/// The header as it stands in the file, little-endian; the body follows it and ends with the file.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Header {
    pub magic: [u8; 8],
    pub version: u32,
    /// CRC-32C of this header with 0 in this place.
    pub header_checksum: u32,
    /// CRC-32C of the body.
    pub body_checksum: u32,
    pub num_features: u32,
    pub file_length: u64,
    pub num_queries: u64,
    pub num_documents: u64,
    pub absent_cells: u64,
    pub first_index: u32,
    pub least: u32,
    pub largest: u32,
    /// 0 = missing, 1 = zero
    pub absent: u32,
    pub num_initial: u32,
    /// 0 or 1
    pub has_labels: u32,
    /// Offset in the file and length, in bytes.
    pub sections: [[u64; 2]; SECTIONS],
    pub reserved: [u8; 32],
}

/// Bytes of the header.
pub const HEADER_LENGTH: u64 = size_of::<Header>() as u64;

impl Header {
    /// The checksum that belongs into [`Header::header_checksum`].
    pub fn checksum(&self) -> u32 {
        crc32c::crc32c(bytemuck::bytes_of(&Header { header_checksum: 0, ..*self }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_keeps_its_size_and_the_features_their_alignment() {
        assert_eq!(HEADER_LENGTH, 256);
        assert_eq!(HEADER_LENGTH % ALIGNMENT, 0);
    }
}
