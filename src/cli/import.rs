//! `setrank import`.

/// Arguments of `setrank import`.
#[derive(clap::Args)]
pub struct Args {}

pub fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("not there yet")
}
