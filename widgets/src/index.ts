/** The names that the sidebar (or any other host) needs to show the dashboard. */

export type { StreamStats } from './stream/accounts.js';
export { controlMessage, type KernelLike } from './stream/channel.js';
export type { ChartDocument } from './stream/commands.js';
export type { Connection, ConnectionState } from './stream/connection.js';
export {
  mountDashboard,
  onCellDashboard,
  type DashboardOptions,
  type MountedDashboard
} from './page/dashboard.js';
export { download } from './page/dom.js';
export type { DashboardElement, MonitorHandle } from './page/handle.js';
export { REQUEST, type Figures } from './stream/protocol.js';
export { glanceParts, GlanceSource, type GlancePart, type GlanceState } from './stream/glance.js';
export { KernelSource, type KernelSourceOptions } from './stream/kernel_source.js';
export { recordingText } from './page/recording.js';
export { RecordedSource, type RecordedPlace } from './stream/recorded_source.js';
export { entryText, moment, type Recorded, type SessionEntry } from './stream/sessions.js';
export type { MonitorSource } from './stream/source.js';
export * from './stream/page_messages.js';
