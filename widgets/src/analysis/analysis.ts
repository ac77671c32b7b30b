/** The kernel's analysis, and the progress of *Diagnose* and *Profile*. Shares are 0 to 1. */

import type { Findings, LoaderState, VerdictState } from '../stream/protocol.js';

export type {
  DiagnosisResult as Diagnosis,
  DiagnosisState as Diagnosing,
  Findings,
  GainState as Gain,
  OfferState as Offer,
  ProfileResult as Profile,
  ProfileState as Profiling,
  Trial as Run,
  VerdictState as Verdict
} from '../stream/protocol.js';

export type Kind = VerdictState['kind'];

/** A kernel's analysis, as the page last received it; its `verdict` is null before the first step. */
export interface AnalysisState extends Required<Findings> {
  /** The newest of each loader, by its id. */
  readonly verdicts: ReadonlyMap<string, VerdictState>;
}

/**
 * The id of the loader that is shown large: the kernel's choice; before a loop has run, the first of those that are
 * still there.
 */
export function mainLoader(
  loaders: readonly LoaderState[],
  analysis: AnalysisState | null
): string | null {
  const main =
    loaders.find(({ id, ended }) => id === analysis?.main && ended !== true) ??
    loaders.find(({ ended }) => ended !== true) ??
    loaders.at(-1);
  return main?.id ?? null;
}
